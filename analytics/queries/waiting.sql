-- Which jobs wait for devices?
select job_id, pool, name, user_name, gpus, priority, submitted, attempts, round(waited_s, 1) as waited_s
from waiting_now
order by submitted;
