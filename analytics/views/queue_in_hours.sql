-- The steps of queue_over_time, cut at quarters of an hour and until the pool's last fact: how many jobs waited and
-- ran for `lasted_s`. Every time zone begins its hours with a quarter, so `hour` is an hour of the reader's.
create or replace view queue_in_hours as
with steps as (
    select pool, time as since, coalesce(lead(time) over (partition by pool order by time), last_fact) as until, waiting, running
    from queue_over_time join pool_clock using (pool)
),
pieces as (
    select *, unnest(range(epoch_us(since) // 900_000_000, 1 + (epoch_us(until) - 1) // 900_000_000)) as quarter
    from steps
    where until > since
)
select
    pool,
    -- date_trunc would make one hour of the two that have the same name when summer time ends
    make_timestamptz(900_000_000 * quarter) - to_minutes(minute(make_timestamptz(900_000_000 * quarter))) as hour,
    waiting,
    running,
    (least(epoch_us(until), 900_000_000 * (quarter + 1)) - greatest(epoch_us(since), 900_000_000 * quarter)) / 1e6
        as lasted_s
from pieces;
