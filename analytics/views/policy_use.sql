-- How much of the devices each policy used over its periods (see policy_spans): allocation is device-seconds
-- held / available, utilization is the time-weighted mean of samples.
create or replace view policy_use as
with spans as materialized (
    from policy_spans
),
-- the time between the edges of all spans, so that each reading is looked at once, although spans overlap
slices as (
    select pool, time as since, lead(time) over (partition by pool order by time) as until
    from (select distinct pool, unnest([since, until]) as time from spans)
),
readings as (
    select
        pool,
        slices.since,
        slices.until,
        utilization,
        -- a piece of a minute may be interrupted, so it counts with the same share of its measured time
        case
            when reading.since >= slices.since and reading.until <= slices.until then measured_s
            else measured_s * shared_seconds(slices.since, slices.until, reading.since, reading.until)
                / seconds(reading.since, reading.until)
        end as measured_s
    from (from device_readings join devices using (device_id)) as reading
    join slices using (pool)
    where reading.since < slices.until and slices.since < reading.until
),
utilization as (
    select pool, since, until, sum(utilization * measured_s) as busy_s,
        sum(measured_s) filter (where utilization is not null) as measured_s
    from readings
    group by pool, since, until
),
shares as (
    select spans.*, shared_seconds(spans.since, spans.until, available.since, available.until) as available_s,
        null as held_s, null as busy_s, null as measured_s
    from spans join device_available as available
        on available.pool = spans.pool and available.since < spans.until and spans.since < available.until
    union all
    select spans.*, null, shared_seconds(spans.since, spans.until, busy.since, busy.until), null, null
    from spans join device_busy as busy
        on busy.pool = spans.pool and busy.since < spans.until and spans.since < busy.until
    union all
    select spans.*, null, null, utilization.busy_s, utilization.measured_s
    from spans join utilization
        on utilization.pool = spans.pool and utilization.since >= spans.since and utilization.until <= spans.until
)
select
    pool,
    experiment,
    policy,
    coalesce(sum(held_s), 0) as held_s,
    sum(available_s) as available_s,
    100 * coalesce(sum(held_s), 0) / nullif(sum(available_s), 0) as allocation_percent,
    sum(busy_s) / nullif(sum(measured_s), 0) as utilization_percent
from shares
group by pool, experiment, policy;
