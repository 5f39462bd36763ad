-- How do the policies compare?
-- $pool = : only this pool; all pools when empty.
select
    pool,
    policy,
    jobs,
    finished,
    round(makespan_s, 1) as makespan_s,
    round(avg_turnaround_s, 1) as avg_turnaround_s,
    round(p50_turnaround_s, 1) as p50_turnaround_s,
    round(p90_turnaround_s, 1) as p90_turnaround_s,
    round(avg_queueing_s, 1) as avg_queueing_s,
    round(allocation, 4) as allocation,
    round(utilization, 1) as utilization
from policy_summary
where cast($pool as varchar) in ('', pool)
order by pool, avg_turnaround_s;
