-- How many GPU-hours were idle while jobs waited?
-- `waiting_hours` is for how long any job waited. `idle_gpu_hours` counts healthy devices that nobody held then, and
-- `enough_gpu_hours` only those that, together, were enough for one of the jobs (the view fragmentation).
with changes as (
    select pool, unnest([since, until]) as time, unnest([1, -1]) as free, 0 as waiting from device_available
    union all
    select pool, unnest([since, until]), unnest([-1, 1]), 0 from device_busy
    union all
    select pool, unnest([since, until]), 0, unnest([1, -1]) from waiting_periods
),
states as (
    select
        pool,
        seconds(time, lead(time) over reached) / 3600 as hours,
        sum(free) over reached as free,
        sum(waiting) over reached as waiting
    from (select pool, time, sum(free) as free, sum(waiting) as waiting from changes group by pool, time)
    window reached as (partition by pool order by time)
),
enough as (
    select pool, sum(idle_device_s) / 3600 as gpu_hours from fragmentation group by pool
)
select
    pool,
    round(coalesce(sum(hours) filter (where waiting > 0), 0), 3) as waiting_hours,
    round(coalesce(sum(hours * free) filter (where waiting > 0), 0), 3) as idle_gpu_hours,
    round(coalesce(any_value(enough.gpu_hours), 0), 3) as enough_gpu_hours
from states left join enough using (pool)
group by pool
order by pool;
