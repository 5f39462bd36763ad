-- How long each job held devices. The time of a device that several jobs share is split evenly among them.
create or replace view job_gpu_hours as
select pool, job_id, sum(seconds(since, until) / holders) / 3600 as gpu_hours
from hold_pieces
group by pool, job_id;
