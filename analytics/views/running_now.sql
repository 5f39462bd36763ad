-- The attempts that hold devices, as of the pool's last fact.
create or replace view running_now as
select job_id, attempt, pool, name, user_name, policy, runtime, nodes, gpus, started, run_s
from attempt_history
where is_open
order by started;
