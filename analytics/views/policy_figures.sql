-- The main columns of policy_metrics, rounded for display.
create or replace view policy_figures as
select
    scope, experiment, pool, policy, jobs, finished,
    round(columns('^(makespan|avg_turnaround|p50_turnaround|p90_turnaround|avg_queueing)_s$'), 1),
    round(allocation, 4) as allocation,
    round(utilization, 1) as utilization
from policy_metrics;
