-- What devices used by their sampled power: for each job and device that it held, and without a job for the device
-- while nobody held it. Jobs that share a device share its power evenly. Devices without power readings are left out.
create or replace view energy as
with readings as (
    select
        device_id,
        since,
        until,
        power_w * measured_s / 3600 as wh,
        sum(power_w * measured_s / 3600) over (partition by device_id order by since, until) as sum_wh
    from device_readings
    where power_w is not null
),
edges as (
    select distinct device_id, time
    from (select device_id, unnest([since, until]) as time from device_pieces)
    where device_id in (select device_id from readings)
),
-- like a meter's: what the device has used since its first reading
meters as (
    select
        edges.device_id,
        edges.time,
        -- the part of the reading that begins before the edge and ends after it is not used yet
        coalesce(
            sum_wh - wh * shared_seconds(edges.time, until, since, until) / nullif(seconds(since, until), 0), sum_wh, 0
        ) as wh
    from edges asof left join readings on readings.device_id = edges.device_id and readings.since <= edges.time
),
pieces as (
    select pieces.*, ends.wh - begins.wh as wh
    from device_pieces as pieces
    join meters as begins on begins.device_id = pieces.device_id and begins.time = pieces.since
    join meters as ends on ends.device_id = pieces.device_id and ends.time = pieces.until
),
-- the same for each of the jobs that share the device
counters as (
    select
        pool,
        device_id,
        since,
        until,
        share_wh,
        sum(share_wh) over (partition by pool, device_id order by since) as sum_wh
    from (select *, if(holders > 0, wh / holders, 0) as share_wh from pieces)
)
select
    holds.pool,
    job_id,
    any_value(user_name) as user_name,
    holds.device_id,
    sum(last.sum_wh - first.sum_wh + first.share_wh) as energy_wh
from device_holds as holds
join counters as first using (pool, device_id, since)
join counters as last on last.pool = holds.pool and last.device_id = holds.device_id and last.until = holds.until
join jobs using (job_id)
where holds.until > holds.since
group by holds.pool, job_id, holds.device_id
union all
select pool, null, null, device_id, sum(wh) from pieces where holders = 0 group by pool, device_id;
