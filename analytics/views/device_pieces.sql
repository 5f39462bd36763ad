-- The time of each device in a pool, in pieces at whose edges an attempt took or released it: how many attempts
-- held it at a time. It begins when the device joined and ends with the pool's last fact, or in another pool.
create or replace view device_pieces as
with edges as (
    select pool, device_id, unnest([since, until]) as time, unnest([1, -1]) as change from device_holds
    union all
    select pool, device_id, unnest([joined, greatest(joined, least(left_it, last_fact))]), 0
    from (
        select pool, device_id, time as joined, lead(time) over (partition by device_id order by time) as left_it
        from devices
    )
    join pool_clock using (pool)
),
pieces as (
    select
        pool,
        device_id,
        time as since,
        lead(time) over reached as until,
        cast(sum(change) over reached as bigint) as holders
    from (select pool, device_id, time, sum(change) as change from edges group by all)
    window reached as (partition by pool, device_id order by time)
)
from pieces where until is not null;
