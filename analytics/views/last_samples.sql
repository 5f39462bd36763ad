-- When each device was sampled last. A device that was sampled before the minutes ended (see sample_minutes) and
-- never since has its time there.
create or replace view last_samples as
select device_id, max(time) as time
from (
    select device_id, time from samples where time >= (select rolled_until from sample_clock)
    union all
    select device_id, since from sample_minutes where is_last
)
group by device_id;
