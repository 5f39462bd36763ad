-- The steps of queue_over_time, cut at full hours and until the pool's last fact: how many jobs waited and ran for
-- `lasted_s` in this hour.
create or replace view queue_in_hours as
with steps as (
    select pool, time as since, coalesce(lead(time) over (partition by pool order by time), last_fact) as until, waiting, running
    from queue_over_time join pool_clock using (pool)
),
pieces as (
    select
        *,
        unnest(range(epoch_us(since) // 3_600_000_000, 1 + (epoch_us(until) - 1) // 3_600_000_000)) as hour
    from steps
    where until > since
)
select
    pool,
    make_timestamptz(3_600_000_000 * hour) as hour,
    waiting,
    running,
    (least(epoch_us(until), 3_600_000_000 * (hour + 1)) - greatest(epoch_us(since), 3_600_000_000 * hour)) / 1e6
        as lasted_s
from pieces;
