-- From when until when each attempt held its devices. If its end was not recorded (a worker died), the start of
-- the job's next attempt is used, else the job's own end, else the pool's last fact.
create or replace view attempt_spans as
with begun as (
    select job_id, attempt, min(since) as since
    from (
        select job_id, attempt, started as since from attempts
        union all
        select job_id, attempt, since from allocations
    )
    group by job_id, attempt
),
followed as (
    select *, lead(since) over (partition by job_id order by attempt) as next_since from begun
),
ended as (
    select
        job_id,
        attempt,
        pool,
        since,
        -- a run that was retried by hand continues after its job's first end
        coalesce(attempt_ends.ended, next_since, if(last_ends.ended >= since, last_ends.ended, null)) as until
    from followed
    left join jobs using (job_id)
    left join last_ends using (job_id)
    left join attempt_ends using (job_id, attempt)
)
select
    job_id, attempt, pool, since, greatest(since, coalesce(until, last_fact)) as until, until is null as is_open
from ended left join pool_clock using (pool);
