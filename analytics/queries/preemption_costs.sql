-- What does it cost to stop a job and to resume it?
select
    coalesce(pool, 'all') as pool, stopped, restarts,
    round(columns('^(checkpoint|restart|migration)_s$'), 2),
    round(columns('^lost(_gpu)?_s$'), 1)
from preemption_costs
order by preemption_costs.pool nulls first;
