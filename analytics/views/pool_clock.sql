-- The times of the first and the last fact of each pool. No view reads the wall clock: what has not ended yet
-- is counted until the pool's last fact.
create or replace view pool_clock as
select pool, min(time) as first_fact, max(time) as last_fact
from (
    select pool, submitted as time from jobs
    union all
    select pool, ended from job_ends join jobs using (job_id)
    union all
    select pool, started from attempts join jobs using (job_id)
    union all
    select pool, ended from attempt_ends join jobs using (job_id)
    union all
    select pool, since from allocations join jobs using (job_id)
    union all
    select pool, time from decisions
    union all
    select pool, time from offers
    union all
    select pool, time from swaps
    union all
    select pool, time from devices
    union all
    select pool, device_events.time from device_events join device_home using (device_id)
    union all
    select pool, last_samples.time from last_samples join device_home using (device_id)
)
group by pool;
