-- Which devices are sick or gone, and how long was each unavailable?
with latest as (
    select device_id, arg_max(kind, time) as kind, max(time) as since, arg_max(detail, time) as detail
    from device_events
    group by device_id
),
usable as (
    select pool, device_id, sum(seconds(since, until)) as available_s from device_available group by all
)
select
    pool,
    node,
    index,
    model,
    device_id,
    coalesce(latest.kind, 'healthy') as health,
    coalesce(latest.since, devices.time) as since,
    latest.detail,
    round(seconds(devices.time, last_fact) - coalesce(available_s, 0), 1) as out_s
from devices
left join latest using (device_id)
left join usable using (pool, device_id)
join pool_clock using (pool)
order by health = 'healthy', pool, node, index;
