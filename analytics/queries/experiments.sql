-- How did the policies compare within each experiment?
-- $experiment = : only this experiment; all when empty.
select
    experiment,
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
from experiment_summary
where cast($experiment as varchar) in ('', experiment)
order by experiment, avg_turnaround_s;
