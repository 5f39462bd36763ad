-- When a device was both available and held by at least one job.
create or replace view device_busy as
select
    pool,
    device_id,
    node,
    greatest(held.since, available.since) as since,
    least(held.until, available.until) as until
from device_available as available
join device_held as held using (pool, device_id)
where held.since < available.until and available.since < held.until;
