-- The metrics of the jobs that ran and ended: overall, per pool and per experiment. Jobs that were refused, or
-- cancelled while they waited, do not count.
create or replace view job_metrics as
select
    case when grouping(pool) = 0 then 'pool' when grouping(experiment) = 0 then 'experiment' else 'overall' end as scope,
    pool,
    experiment,
    count(*) as jobs,
    min(submitted) as first_submitted,
    max(ended) as last_ended,
    seconds(min(submitted), max(ended)) as makespan_s,
    avg(turnaround_s) as avg_turnaround_s,
    quantile_cont(turnaround_s, 0.5) as p50_turnaround_s,
    quantile_cont(turnaround_s, 0.9) as p90_turnaround_s,
    quantile_cont(turnaround_s, 0.99) as p99_turnaround_s,
    max(turnaround_s) as max_turnaround_s,
    avg(queueing_s) as avg_queueing_s,
    quantile_cont(queueing_s, 0.5) as p50_queueing_s,
    quantile_cont(queueing_s, 0.9) as p90_queueing_s,
    quantile_cont(queueing_s, 0.99) as p99_queueing_s,
    max(queueing_s) as max_queueing_s
from job_history
where state = 'ended' and attempts > 0
group by grouping sets ((), (pool), (experiment))
having grouping(experiment) = 1 or experiment <> '';
