-- How long does a job take from submission to end?
select
    scope,
    coalesce(pool, experiment) as name,
    jobs,
    round(avg_turnaround_s, 1) as avg_s,
    round(p50_turnaround_s, 1) as p50_s,
    round(p90_turnaround_s, 1) as p90_s,
    round(p99_turnaround_s, 1) as p99_s,
    round(max_turnaround_s, 1) as max_s
from turnaround
order by scope = 'experiment', scope, name;
