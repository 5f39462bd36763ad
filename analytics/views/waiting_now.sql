-- The jobs that wait for devices, as of the pool's last fact. Those with `attempts` > 0 were stopped and wait again.
create or replace view waiting_now as
select job_id, pool, name, user_name, gpus, gpu_memory_mb, priority, deadline, submitted, attempts,
    greatest(0, seconds(submitted, last_fact) - run_s) as waited_s
from job_history join pool_clock using (pool)
where state = 'waiting'
order by submitted;
