-- How much of the devices each policy used over its periods (see policy_spans): allocation is device-seconds
-- held / available, utilization is the time-weighted mean of samples.
create or replace view policy_use as
with shares as (
    select spans.*, shared_seconds(spans.since, spans.until, available.since, available.until) as available_s,
        null as held_s, null as utilization, null as measured_s
    from policy_spans as spans join device_available as available
        on available.pool = spans.pool and available.since < spans.until and spans.since < available.until
    union all
    select spans.*, null, shared_seconds(spans.since, spans.until, busy.since, busy.until), null, null
    from policy_spans as spans join device_busy as busy
        on busy.pool = spans.pool and busy.since < spans.until and spans.since < busy.until
    union all
    select
        spans.*,
        null,
        null,
        utilization,
        -- a piece of a minute may be interrupted, so it counts with the same share of its measured time
        measured_s * coalesce(
            shared_seconds(spans.since, spans.until, reading.since, reading.until)
                / nullif(seconds(reading.since, reading.until), 0),
            0
        )
    from policy_spans as spans join (from device_readings join devices using (device_id)) as reading
        on reading.pool = spans.pool and reading.since < spans.until and spans.since < reading.until
)
select
    pool,
    experiment,
    policy,
    coalesce(sum(held_s), 0) as held_s,
    sum(available_s) as available_s,
    100 * coalesce(sum(held_s), 0) / nullif(sum(available_s), 0) as allocation_percent,
    mean_over_time(utilization, measured_s) as utilization_percent
from shares
group by pool, experiment, policy;
