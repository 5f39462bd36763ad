-- What it costs to stop a job and to let it go on, as the simulator counts it (medians), per pool and in all
-- (pool is NULL).
--   checkpoint_s  from being asked to leave until it was gone
--   restart_s     from its next start until it had loaded its checkpoint, on the nodes where it was
--   migration_s   how much longer that took on other nodes
create or replace view preemption_costs as
select
    pool,
    count(*) as departures,
    count(*) filter (where outcome in ('preempted', 'moved', 'resized')) as stopped,
    count(restart_s) as restarts,
    median(leaving_s) filter (where outcome in ('preempted', 'moved', 'resized')) as checkpoint_s,
    coalesce(median(restart_s) filter (where not is_migration), median(restart_s)) as restart_s,
    greatest(
        0,
        coalesce(
            median(restart_s) filter (where is_migration) - median(restart_s) filter (where not is_migration), 0
        )
    ) as migration_s,
    sum(lost_s) as lost_s,
    sum(lost_s * gpus_before) as lost_gpu_s
from preemptions
group by grouping sets ((), (pool));
