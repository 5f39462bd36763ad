-- Last end - first submission of the jobs that ran and ended, overall, per pool and per experiment.
create or replace view makespan as
select
    case when grouping(pool) = 0 then 'pool' when grouping(experiment) = 0 then 'experiment' else 'overall' end as scope,
    pool,
    experiment,
    count(*) as jobs,
    min(submitted) as first_submitted,
    max(ended) as last_ended,
    seconds(min(submitted), max(ended)) as makespan_s
from job_history
where state = 'ended' and attempts > 0
group by grouping sets ((), (pool), (experiment))
having grouping(experiment) = 1 or experiment <> '';
