-- When a device was held by at least one job: overlapping and touching holds become one.
create or replace view device_held as
with ordered as (
    select *, max(until) over (
        partition by pool, device_id order by since, until
        rows between unbounded preceding and 1 preceding
    ) as reached
    from device_holds
),
numbered as (
    select *, count(*) filter (where reached is null or since > reached) over (
        partition by pool, device_id order by since, until rows unbounded preceding
    ) as stretch
    from ordered
)
select pool, device_id, min(since) as since, max(until) as until
from numbered
group by pool, device_id, stretch;
