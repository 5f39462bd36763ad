-- What the samples tell about each piece of a device's time (see device_pieces): its energy, and its utilization
-- as the integral over time (percent times seconds) of the time for which it is known. Times without samples are
-- left out; a piece without any has NULL.
create or replace view piece_use as
with pieces as materialized (
    from device_pieces
),
readings as (
    select
        device_id,
        since,
        until,
        power_w * measured_s / 3600 as energy_wh,
        utilization * measured_s as utilization_s,
        if(utilization is null, 0, measured_s) as measured_s
    from device_readings
),
located as (
    select
        readings.*,
        pieces.pool,
        pieces.since as piece_since,
        coalesce(readings.until <= pieces.until, false) as is_within
    from readings asof left join pieces
        on pieces.device_id = readings.device_id and pieces.since <= readings.since
),
shares as (
    select pool, device_id, piece_since as since, energy_wh, utilization_s, measured_s, 1 as share
    from located
    where is_within
    union all
    -- a reading across an edge, also across the first or the last one of the device
    select
        pieces.pool,
        device_id,
        pieces.since,
        energy_wh,
        utilization_s,
        measured_s,
        shared_seconds(pieces.since, pieces.until, located.since, located.until)
            / seconds(located.since, located.until)
    from located join pieces using (device_id)
    where not is_within and pieces.since < located.until and located.since < pieces.until
),
sums as (
    select
        pool,
        device_id,
        since,
        sum(energy_wh * share) as energy_wh,
        sum(utilization_s * share) as utilization_s,
        sum(measured_s * share) as measured_s
    from shares
    group by pool, device_id, since
)
select pool, device_id, since, until, holders, energy_wh, utilization_s, measured_s
from pieces left join sums using (pool, device_id, since);
