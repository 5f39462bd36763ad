-- What devices used by their sampled power: for each job and device that it held, and without a job for the device
-- while nobody held it. Jobs that share a device share its power evenly. Devices without power readings are left out.
create or replace view energy as
select pool, job_id, user_name, device_id, energy_wh
from job_use left join jobs using (pool, job_id)
where energy_wh is not null;
