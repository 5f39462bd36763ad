-- The time-weighted mean of each device's sampled utilization, and the other sampled values.
create or replace view utilization_by_device as
select
    device_id,
    pool,
    node,
    index,
    model,
    sum(samples)::bigint as samples,
    sum(measured_s) as measured_s,
    mean_over_time(utilization, measured_s) as utilization_percent,
    mean_over_time(memory_used_mb, measured_s) as memory_used_mb,
    mean_over_time(power_w, measured_s) as power_w,
    max(max_memory_used_mb) as max_memory_used_mb,
    max(max_power_w) as max_power_w,
    min(min_temperature_c) as min_temperature_c,
    max(max_temperature_c) as max_temperature_c
from device_readings
left join device_home using (device_id)
group by device_id, pool, node, index, model;
