-- Which attempt held which device, from when until when. Two rows may overlap where jobs share a device.
create or replace view device_holds as
select job_id, attempt, pool, device_id, node, memory_mb, allocations.since, greatest(allocations.since, until) as until
from allocations
join attempt_spans using (job_id, attempt);
