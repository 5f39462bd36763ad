-- Periods in which devices were idle although they were enough, all together, for a job that waited: they lay on
-- several nodes, or the policy did not use them. Several such jobs at a time count their devices once.
--   idle_devices   the free ones that such a job could have used: healthy, held by nobody, and of enough memory
-- A job is judged by its number of devices and its memory per device. The models and the nodes that it requires are
-- not looked at, nor are devices that others share and that have memory left.
create or replace view fragmentation as
with sizes as (
    select distinct pool, memory_mb from devices
),
-- jobs of one class differ in nothing that counts here: `memory_mb` is that of the smallest device that is enough
requests as (
    select job_id, pool, gpus, min(sizes.memory_mb) as memory_mb
    from jobs join sizes using (pool)
    where gpus > 0 and sizes.memory_mb >= coalesce(gpu_memory_mb, 0)
    group by job_id, pool, gpus
),
waiting as (
    select pool, gpus, memory_mb, time, sum(change) as waiting
    from (
        select pool, job_id, unnest([since, until]) as time, unnest([1, -1]) as change from waiting_periods
    )
    join requests using (pool, job_id)
    group by all
),
classes as (
    select distinct pool, gpus, memory_mb from waiting
),
-- how many devices of at least this memory are free from this time on, and were before
device_changes as (
    select pool, device_id, unnest([since, until]) as time, unnest([1, -1]) as change from device_available
    union all
    select pool, device_id, unnest([since, until]), unnest([-1, 1]) from device_busy
),
size_changes as (
    select pool, sizes.memory_mb, device_changes.time, sum(change) as change
    from device_changes join devices using (pool, device_id) join sizes using (pool)
    where devices.memory_mb >= sizes.memory_mb
    group by all
    having sum(change) <> 0
),
free as (
    select *, sum(change) over (partition by pool, memory_mb order by time) as devices from size_changes
),
-- when jobs of a class wait, and when the free devices are enough for one: both at a time is a fragment
class_changes as (
    select pool, gpus, memory_mb, time, waiting, 0 as fits from waiting
    union all
    select pool, gpus, memory_mb, time, 0, if(change > 0, 1, -1)
    from free join classes using (pool, memory_mb)
    where gpus > least(devices - change, devices) and gpus <= greatest(devices - change, devices)
),
class_states as (
    select
        *,
        sum(waiting) over (class order by time) > 0 and sum(fits) over (class order by time) > 0 as is_fragment
    from (
        select pool, gpus, memory_mb, time, sum(waiting) as waiting, sum(fits) as fits from class_changes group by all
    )
    window class as (partition by pool, gpus, memory_mb)
),
class_fragments as (
    select
        pool,
        memory_mb,
        time,
        is_fragment::int
            - lag(is_fragment::int, 1, 0) over (partition by pool, gpus, memory_mb order by time) as change
    from class_states
),
-- the devices of one size are idle while they are free and there is a fragment of this or a smaller size
exactly as (
    select pool, devices.memory_mb, device_changes.time, 0 as fragments, sum(change) as devices
    from device_changes join devices using (pool, device_id)
    group by all
    union all
    select pool, sizes.memory_mb, time, sum(change), 0
    from class_fragments join sizes using (pool)
    where class_fragments.memory_mb <= sizes.memory_mb and change <> 0
    group by all
),
idle as (
    select
        pool,
        memory_mb,
        time,
        if(sum(fragments) over reached > 0, sum(devices) over reached, 0) as devices
    from (
        select pool, memory_mb, time, sum(fragments) as fragments, sum(devices) as devices from exactly group by all
    )
    window reached as (partition by pool, memory_mb order by time)
),
idle_changes as (
    select pool, time, sum(change) as change
    from (
        select pool, time, devices - lag(devices, 1, 0) over (partition by pool, memory_mb order by time) as change
        from idle
    )
    group by pool, time
    having sum(change) <> 0
),
periods as (
    select
        pool,
        time as since,
        lead(time) over (partition by pool order by time) as until,
        cast(sum(change) over (partition by pool order by time) as bigint) as idle_devices
    from idle_changes
)
select pool, since, until, idle_devices, idle_devices * seconds(since, until) as idle_device_s
from periods
where idle_devices > 0 and until > since;
