-- What the samples tell about each job on each device that it held, over all its attempts, and without a job about
-- the energy of each device while nobody held it. Jobs that share a device share its energy evenly, and each has the
-- utilization that the device had meanwhile. Unknown values are NULL.
create or replace view job_use as
with used as materialized (
    from piece_use
),
pieces as (
    select
        pool,
        device_id,
        since,
        until,
        if(holders > 0, energy_wh / holders, null) as energy_wh,
        utilization_s,
        measured_s
    from used
),
-- from the device's first piece to the end of this one: a hold is the difference of two
counters as materialized (
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
group by holds.pool, job_id, holds.device_id
union all
select pool, null, device_id, sum(energy_wh), null, null
from used
where holders = 0
group by pool, device_id
having sum(energy_wh) is not null;
