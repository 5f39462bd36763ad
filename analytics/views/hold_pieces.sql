-- Which attempt held which device, in pieces at whose edges any attempt took or released it, and how many held it
-- then. An attempt's share of a device's time is seconds(since, until) / holders.
create or replace view hold_pieces as
with numbered as materialized (
    select *, row_number() over (partition by pool, device_id order by since) as number from device_pieces
),
spans as (
    select
        job_id,
        attempt,
        holds.pool,
        holds.device_id,
        unnest(range(first.number, last.number + 1)) as number
    from device_holds as holds
    join numbered as first using (pool, device_id, since)
    join numbered as last on last.pool = holds.pool and last.device_id = holds.device_id and last.until = holds.until
    where holds.until > holds.since
)
select job_id, attempt, pool, device_id, since, until, holders
from spans join numbered using (pool, device_id, number);
