-- The main columns of policy_metrics, rounded for display.
create or replace view policy_figures as
select
    scope, experiment, pool, policy, jobs, finished,
    round(columns('^(makespan|avg_turnaround|p50_turnaround|p90_turnaround|avg_queueing)_s$'), 1),
    round(columns('^(allocation|utilization)_percent$'), 1)
from policy_metrics;
