-- What does it cost to stop a job and to let it go on?
select
    coalesce(pool, 'all') as pool,
    stopped,
    restarts,
    round(checkpoint_s, 2) as checkpoint_s,
    round(restart_s, 2) as restart_s,
    round(migration_s, 2) as migration_s,
    round(lost_s, 1) as lost_s,
    round(lost_gpu_s, 1) as lost_gpu_s
from preemption_costs
order by preemption_costs.pool nulls first;
