-- From when until when each job waited for devices: from its submission to its first attempt, and again from the end
-- of each attempt to the next one, or to the job's own end. It does not wait while it is suspended, or after the
-- attempt with which it ended. The wait of a job that waits now is open, and counts until the pool's last fact.
create or replace view waiting_periods as
with runs as (
    select
        job_id,
        until,
        is_open,
        outcome,
        lead(since) over (partition by job_id order by attempt) as next_since
    from attempt_spans left join attempt_ends using (job_id, attempt)
),
first_runs as (
    select job_id, min(since) as since from attempt_spans group by job_id
),
waits as (
    select job_id, submitted as since, first_runs.since as started from jobs left join first_runs using (job_id)
    union all
    select job_id, until, next_since
    from runs left join last_ends using (job_id)
    where not is_open
        and runs.outcome is distinct from 'suspended'
        and (
            next_since is not null
            or ended is null
            or runs.outcome not in ('completed', 'failed', 'crashed', 'cancelled')
        )
)
select
    pool,
    job_id,
    greatest(waits.since, submitted) as since,
    coalesce(least(started, ended), last_fact) as until,
    started is null and ended is null as is_open
from waits
join jobs using (job_id)
left join last_ends using (job_id)
join pool_clock using (pool)
where is_open or until > greatest(waits.since, submitted);
