-- The time-weighted mean of the sampled utilization of each node's devices.
create or replace view utilization_by_node as
select
    pool,
    node,
    count(distinct device_id) as devices,
    sum(measured_s) as measured_s,
    mean_over_time(utilization, measured_s) as utilization_percent
from device_readings
left join device_home using (device_id)
group by pool, node;
