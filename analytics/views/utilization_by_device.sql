-- The time-weighted mean of each device's sampled utilization, and the other sampled values.
create or replace view utilization_by_device as
select
    device_id,
    pool,
    node,
    index,
    model,
    count(*) as samples,
    sum(seconds(since, until)) as measured_s,
    mean_over_time(utilization, seconds(since, until)) as utilization_percent,
    mean_over_time(memory_used_mb, seconds(since, until)) as memory_used_mb,
    mean_over_time(power_w, seconds(since, until)) as power_w,
    max(temperature_c) as max_temperature_c
from device_readings
left join device_home using (device_id)
group by device_id, pool, node, index, model;
