-- What the samples tell about each job on each device that it held, over all its attempts. Jobs that share a device
-- share its energy evenly, and each has the utilization that the device had meanwhile. Unknown values are NULL.
create or replace view job_use as
with pieces as (
    select
        pieces.pool,
        pieces.device_id,
        pieces.since,
        pieces.until,
        if(pieces.holders > 0, energy_wh / pieces.holders, null) as energy_wh,
        utilization_s,
        measured_s
    from device_pieces as pieces left join piece_use as used using (pool, device_id, since)
),
-- from the device's first piece to the end of this one: a hold is the difference of two
counters as (
    select
        pool,
        device_id,
        since,
        until,
        struct_pack(wh := energy_wh, known := energy_wh is not null, busy_s := utilization_s, s := measured_s) as own,
        sum(energy_wh) over earlier as wh,
        count(energy_wh) over earlier as known,
        sum(utilization_s) over earlier as busy_s,
        sum(measured_s) over earlier as s
    from pieces
    window earlier as (partition by pool, device_id order by since)
)
select
    holds.pool,
    job_id,
    holds.device_id,
    if(
        sum(last.known - first.known + first.own.known::int) > 0,
        sum(coalesce(last.wh, 0) - coalesce(first.wh, 0) + coalesce(first.own.wh, 0)),
        null
    ) as energy_wh,
    sum(coalesce(last.busy_s, 0) - coalesce(first.busy_s, 0) + coalesce(first.own.busy_s, 0))
        / nullif(sum(coalesce(last.s, 0) - coalesce(first.s, 0) + coalesce(first.own.s, 0)), 0) as utilization_percent,
    sum(seconds(holds.since, holds.until)) as held_s
from device_holds as holds
join counters as first using (pool, device_id, since)
join counters as last on last.pool = holds.pool and last.device_id = holds.device_id and last.until = holds.until
where holds.until > holds.since
group by holds.pool, job_id, holds.device_id;
