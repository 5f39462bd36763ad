-- The jobs that wait for devices, as of the pool's last fact. Those with `attempts` > 0 were stopped and wait again.
create or replace view waiting_now as
select job_id, pool, name, user_name, gpus, gpu_memory_mb, priority, deadline, submitted, attempts, waited_s
from job_history
where state = 'waiting'
order by submitted;
