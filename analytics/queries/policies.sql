-- How do the policies compare?
-- $pool = : only this pool; all pools when empty.
select
    pool, policy, jobs, finished,
    round(columns('^(makespan|avg_turnaround|p50_turnaround|p90_turnaround|avg_queueing)_s$'), 1),
    round(allocation, 4) as allocation,
    round(utilization, 1) as utilization
from policy_summary
where cast($pool as varchar) in ('', pool)
order by pool, avg_turnaround_s;
