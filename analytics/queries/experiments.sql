-- How did the policies compare within each experiment?
-- $experiment = : only this experiment; all when empty.
select
    experiment, policy, jobs, finished,
    round(columns('^(makespan|avg_turnaround|p50_turnaround|p90_turnaround|avg_queueing)_s$'), 1),
    round(allocation, 4) as allocation,
    round(utilization, 1) as utilization
from experiment_summary
where cast($experiment as varchar) in ('', experiment)
order by experiment, avg_turnaround_s;
