-- What it costs to stop a job and to resume it, as the simulator counts it (medians), per pool and overall
-- (pool is NULL).
--   checkpoint_s  from the request to stop until the devices were released
--   restart_s     from the next start until the checkpoint was loaded, on the same nodes
--   migration_s   how much longer that took on other nodes
create or replace view preemption_costs as
select
    pool,
    count(*) as interruptions,
    count(*) filter (where outcome in ('preempted', 'moved', 'resized')) as stopped,
    count(restart_s) as restarts,
    median(stopping_s) filter (where outcome in ('preempted', 'moved', 'resized')) as checkpoint_s,
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
