-- How long jobs waited: turnaround - time on devices, overall, per pool and per experiment. Counts jobs that ran
-- and ended; those that were refused, or cancelled in the queue, never had a chance to be quick.
create or replace view queueing as
select
    case when grouping(pool) = 0 then 'pool' when grouping(experiment) = 0 then 'experiment' else 'overall' end as scope,
    pool,
    experiment,
    count(*) as jobs,
    avg(queueing_s) as avg_queueing_s,
    quantile_cont(queueing_s, 0.5) as p50_queueing_s,
    quantile_cont(queueing_s, 0.9) as p90_queueing_s,
    quantile_cont(queueing_s, 0.99) as p99_queueing_s,
    max(queueing_s) as max_queueing_s
from job_history
where state = 'ended' and attempts > 0
group by grouping sets ((), (pool), (experiment))
having grouping(experiment) = 1 or experiment <> '';
