-- Samples as periods: a reading is valid until the device's next one, for at most ten seconds (a longer gap
-- means that sampling was interrupted); the last one has no duration. Older samples have become pieces of minutes,
-- whose values are means over time; see the table sample_minutes. A piece may be interrupted: `measured_s` is for
-- how long its values were valid.
create or replace view device_readings as
with clock as (
    from sample_clock
),
recent as (
    select
        *,
        make_timestamptz(least(epoch_us(time) + 10_000_000, epoch_us(coalesce(next_time, time)))) as until
    from (
        select *, lead(time) over (partition by device_id order by time) as next_time
        from samples
        where time >= (select make_timestamptz(epoch_us(rolled_until) - 10_000_000) from clock)
    )
)
select
    device_id,
    greatest(time, (select rolled_until from clock)) as since,
    until,
    if(time >= (select rolled_until from clock), 1, 0) as samples,
    seconds(greatest(time, (select rolled_until from clock)), until) as measured_s,
    utilization,
    memory_used_mb,
    power_w,
    temperature_c,
    utilization as max_utilization,
    memory_used_mb as max_memory_used_mb,
    power_w as max_power_w,
    temperature_c as min_temperature_c,
    temperature_c as max_temperature_c
from recent
where time >= (select rolled_until from clock) or until > (select rolled_until from clock)
union all
select * exclude (is_last, is_end)
    replace (if(is_end, since, until) as until, if(is_end, 0, measured_s) as measured_s)
from (
    select
        *,
        is_last and device_id not in (
            select device_id from samples where time >= (select rolled_until from clock)
        ) as is_end
    from sample_minutes
);
