-- The periods over which a policy's allocation and utilization are computed: when it was in force, between the
-- first submission and the last end of a set of jobs, so that idle time around them does not count. The sets
-- are all jobs of a pool (experiment is NULL) and the jobs of each experiment.
create or replace view policy_spans as
with work as (
    select
        pool,
        experiment,
        grouping(experiment) = 1 as is_pool,
        min(submitted) as since,
        max(coalesce(ended, last_fact)) as until
    from job_history join pool_clock using (pool)
    group by grouping sets ((pool), (pool, experiment))
)
select
    pool,
    work.experiment,
    policy,
    greatest(periods.since, work.since) as since,
    least(periods.until, work.until) as until
from work join policy_periods as periods using (pool)
where (is_pool or work.experiment <> '') and periods.since < work.until and work.since < periods.until;
