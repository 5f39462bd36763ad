-- Which jobs hold devices?
select job_id, attempt, pool, name, user_name, policy, nodes, gpus, started, round(run_s, 1) as run_s
from running_now
order by started;
