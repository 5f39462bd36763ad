-- Each device's utilization minute by minute. A reading that extends into the next minute is split.
create or replace view utilization_by_device_minute as
with readings as (
    select device_id, utilization, epoch_us(since) as since, epoch_us(until) as until,
        60_000_000 * (epoch_us(until) // 60_000_000) as last_minute
    from device_readings
),
pieces as (
    select device_id, utilization, since, if(last_minute > since, last_minute, until) as until from readings
    union all
    select device_id, utilization, last_minute, until from readings where last_minute > since and last_minute < until
)
select
    make_timestamptz(60_000_000 * (since // 60_000_000)) as minute,
    device_id,
    sum(until - since) / 1e6 as measured_s,
    mean_over_time(utilization, until - since) as utilization_percent
from pieces
group by device_id, since // 60_000_000;
