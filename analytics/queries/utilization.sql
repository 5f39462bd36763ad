-- How busy are the devices?
select
    coalesce(node, '?') as node,
    index,
    model,
    device_id,
    samples,
    round(utilization_percent, 1) as utilization_percent,
    round(memory_used_mb) as memory_used_mb,
    round(power_w, 1) as power_w,
    max_temperature_c
from utilization_by_device
order by node, index, device_id;
