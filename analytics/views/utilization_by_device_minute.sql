-- Each device's utilization minute by minute. A reading that extends into the next minute is split.
create or replace view utilization_by_device_minute as
with readings as (
    select device_id, utilization, measured_s, epoch_us(since) as since, epoch_us(until) as until,
        60_000_000 * (epoch_us(until) // 60_000_000) as last_minute
    from device_readings
),
pieces as (
    select
        device_id,
        utilization,
        since,
        if(last_minute > since and last_minute < until, (last_minute - since) / 1e6, measured_s) as measured_s
    from readings
    union all
    select device_id, utilization, last_minute, (until - last_minute) / 1e6
    from readings
    where last_minute > since and last_minute < until
)
select
    make_timestamptz(60_000_000 * (since // 60_000_000)) as minute,
    device_id,
    sum(measured_s) as measured_s,
    mean_over_time(utilization, measured_s) as utilization_percent
from pieces
group by device_id, since // 60_000_000;
