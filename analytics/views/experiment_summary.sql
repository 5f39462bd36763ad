-- The policies side by side within each experiment, as policy_summary does for a whole pool.
create or replace view experiment_summary as
select
    job.experiment, job.pool, job.policy,
    count(*) as jobs,
    count(ended) as finished,
    count(*) filter (where outcome = 'completed') as completed,
    sum(attempts) - count(*) as restarts,
    seconds(min(submitted), max(ended)) as makespan_s,
    avg(turnaround_s) as avg_turnaround_s,
    quantile_cont(turnaround_s, 0.5) as p50_turnaround_s,
    quantile_cont(turnaround_s, 0.9) as p90_turnaround_s,
    quantile_cont(turnaround_s, 0.99) as p99_turnaround_s,
    avg(queueing_s) as avg_queueing_s,
    any_value(allocation) as allocation,
    any_value(utilization) as utilization
from job_history as job
left join policy_use as use
    on use.pool = job.pool and use.policy = job.policy and use.experiment = job.experiment
where attempts > 0 and job.experiment <> ''
group by job.experiment, job.pool, job.policy;
