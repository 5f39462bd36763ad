-- How long each user's jobs held devices. The time of a device that several jobs share is split evenly among them.
create or replace view gpu_hours as
select pool, user_name, sum(gpu_hours) as gpu_hours
from job_gpu_hours join (select job_id, user_name from jobs) using (job_id)
group by pool, user_name;
