-- How long does a job wait for its devices?
select
    scope,
    coalesce(pool, experiment) as name,
    jobs,
    round(avg_queueing_s, 1) as avg_s,
    round(p50_queueing_s, 1) as p50_s,
    round(p90_queueing_s, 1) as p90_s,
    round(p99_queueing_s, 1) as p99_s,
    round(max_queueing_s, 1) as max_s
from queueing
order by scope = 'experiment', scope, name;
