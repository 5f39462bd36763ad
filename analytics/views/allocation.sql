-- Device-seconds held / device-seconds available: overall, per pool, per node and per device, since each
-- device joined. A device that several jobs share counts once, while at least one job holds it.
create or replace view allocation as
with available as (
    select pool, node, device_id, sum(seconds(since, until)) as available_s from device_available group by all
),
busy as (
    select pool, node, device_id, sum(seconds(since, until)) as held_s from device_busy group by all
)
select
    case
        when grouping(device_id) = 0 then 'device'
        when grouping(node) = 0 then 'node'
        when grouping(pool) = 0 then 'pool'
        else 'overall'
    end as scope,
    pool,
    node,
    device_id,
    coalesce(sum(held_s), 0) as held_s,
    sum(available_s) as available_s,
    100 * coalesce(sum(held_s), 0) / nullif(sum(available_s), 0) as allocation_percent
from available left join busy using (pool, node, device_id)
group by grouping sets ((), (pool), (pool, node), (pool, node, device_id));
