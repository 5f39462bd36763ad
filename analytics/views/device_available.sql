-- When a device could be used: from the moment it joined its pool until the pool's last fact, without the
-- times it was sick or gone.
create or replace view device_available as
with changes as (
    select pool, device_id, node, time, 'healthy' as kind, -1 as position from devices
    union all
    select pool, device_id, devices.node, device_events.time, device_events.kind, device_events.rowid
    from device_events join devices using (device_id)
    where device_events.time >= devices.time
),
states as (
    select *, lead(time) over (partition by pool, device_id order by time, position) as next_time from changes
)
select pool, device_id, node, time as since, coalesce(next_time, last_fact) as until
from states join pool_clock using (pool)
where kind = 'healthy' and coalesce(next_time, last_fact) > time;
