-- The time-weighted mean of all devices' sampled utilization, minute by minute.
create or replace view utilization_by_minute as
select
    minute,
    count(*) as devices,
    sum(measured_s) as measured_s,
    mean_over_time(utilization_percent, measured_s) as utilization_percent
from utilization_by_device_minute
group by minute;
