-- The metrics of each policy, per pool and per experiment. A job belongs to the policy that started its last
-- attempt. Times are those of its finished jobs; allocation and utilization are taken over the time that the
-- policy was in force (policy_use).
create or replace view policy_metrics as
with groups as (
    select
        if(grouping(experiment) = 1, 'pool', 'experiment') as scope,
        experiment,
        pool,
        policy,
        count(*) as jobs,
        count(ended) as finished,
        count(*) filter (where outcome = 'completed') as completed,
        sum(attempts) - count(*) as restarts,
        seconds(min(submitted), max(ended)) as makespan_s,
        avg(turnaround_s) as avg_turnaround_s,
        quantile_cont(turnaround_s, 0.5) as p50_turnaround_s,
        quantile_cont(turnaround_s, 0.9) as p90_turnaround_s,
        quantile_cont(turnaround_s, 0.99) as p99_turnaround_s,
        avg(queueing_s) as avg_queueing_s
    from job_history
    where attempts > 0
    group by grouping sets ((pool, policy), (experiment, pool, policy))
    having grouping(experiment) = 1 or experiment <> ''
)
select groups.*, use.allocation_percent, use.utilization_percent
from groups
left join policy_use as use
    on use.pool = groups.pool
    and use.policy = groups.policy
    and use.experiment is not distinct from groups.experiment;
