-- Samples as periods: a reading is valid until the device's next one, for at most ten seconds (a longer gap
-- means that sampling was interrupted); the last one has no duration.
create or replace view device_readings as
select
    device_id,
    time as since,
    make_timestamptz(least(epoch_us(time) + 10_000_000, epoch_us(coalesce(next_time, time)))) as until,
    utilization,
    memory_used_mb,
    power_w,
    temperature_c
from (select *, lead(time) over (partition by device_id order by time) as next_time from samples);
