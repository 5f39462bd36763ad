-- How many jobs of a pool waited and ran from this time on, until its next row. A job that was stopped waits again
-- (see waiting_periods). It runs no longer than until its last state, although its process may end a moment later.
create or replace view queue_over_time as
with runs as (
    select
        job_id,
        pool,
        since,
        if(is_open, null, least(until, lead(since) over (partition by job_id order by attempt))) as until
    from attempt_spans
),
changes as (
    select pool, since as time, 1 as waiting, 0 as running from waiting_periods
    union all
    select pool, until, -1, 0 from waiting_periods where not is_open
    union all
    select pool, since, 0, 1 from runs join jobs using (job_id, pool)
    union all
    select pool, greatest(since, least(until, ended)), 0, -1
    from runs join jobs using (job_id, pool) left join last_ends using (job_id)
    where runs.until is not null
),
steps as (
    select pool, time, sum(waiting) as waiting, sum(running) as running from changes group by pool, time
)
select
    pool,
    time,
    cast(sum(waiting) over reached as bigint) as waiting,
    cast(sum(running) over reached as bigint) as running
from steps
where waiting <> 0 or running <> 0
window reached as (partition by pool order by time);
