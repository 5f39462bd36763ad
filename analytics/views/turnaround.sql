-- How long jobs took from submission to end, overall, per pool and per experiment. Counts jobs that ran
-- and ended; those that were refused, or cancelled in the queue, never had a chance to be quick.
create or replace view turnaround as
select
    case when grouping(pool) = 0 then 'pool' when grouping(experiment) = 0 then 'experiment' else 'overall' end as scope,
    pool,
    experiment,
    count(*) as jobs,
    avg(turnaround_s) as avg_turnaround_s,
    quantile_cont(turnaround_s, 0.5) as p50_turnaround_s,
    quantile_cont(turnaround_s, 0.9) as p90_turnaround_s,
    quantile_cont(turnaround_s, 0.99) as p99_turnaround_s,
    max(turnaround_s) as max_turnaround_s
from job_history
where state = 'ended' and attempts > 0
group by grouping sets ((), (pool), (experiment))
having grouping(experiment) = 1 or experiment <> '';
