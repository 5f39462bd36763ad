-- The time-weighted mean of all devices' sampled utilization (0 to 100), minute by minute.
create or replace view utilization_by_minute as
select
    minute,
    count(*) as devices,
    sum(measured_s) as measured_s,
    mean_over_time(utilization, measured_s) as utilization
from utilization_by_device_minute
group by minute;
