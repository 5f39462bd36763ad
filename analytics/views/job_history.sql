-- One row per job.
--   state         waiting, running, suspended (until its next attempt) or ended
--   policy        the policy that started its last attempt
--   run_s         time on devices over all attempts (until now, while it runs)
--   turnaround_s  ended - submitted, for jobs that ran and ended
--   queueing_s    turnaround - time on devices
--   waited_s      time off devices until the job's end, or the pool's last fact; also for jobs that never ran
create or replace view job_history as
with ran as (
    select
        job_id,
        count(*) as attempts,
        min(started) as first_started,
        arg_max(policy, attempt) as policy,
        bool_or(is_open) as is_open,
        arg_max(attempt_history.outcome, attempt) as last_outcome,
        -- a process may end shortly after its job's last state; that time is not part of the job's
        sum(seconds(started, greatest(started, least(until, coalesce(last_ends.ended, until))))) as run_s
    from attempt_history left join last_ends using (job_id)
    group by job_id
)
select
    job_id,
    jobs.pool,
    jobs.name,
    jobs.flow,
    jobs.deployment,
    jobs.user_name,
    jobs.experiment,
    jobs.gpus,
    jobs.gpu_memory_mb,
    jobs.priority,
    jobs.deadline,
    jobs.expected_s,
    case
        when is_open then 'running'
        when last_ends.ended is not null then 'ended'
        when last_outcome = 'suspended' then 'suspended'
        else 'waiting'
    end as state,
    jobs.submitted,
    ran.first_started,
    last_ends.ended,
    last_ends.outcome,
    coalesce(ran.attempts, 0) as attempts,
    ran.policy,
    -- none for a job that was refused, or cancelled while it waited
    if(ran.attempts > 0, seconds(jobs.submitted, last_ends.ended), null) as turnaround_s,
    turnaround_s - ran.run_s as queueing_s,
    coalesce(ran.run_s, 0) as run_s,
    greatest(0, seconds(jobs.submitted, coalesce(last_ends.ended, pool_clock.last_fact)) - coalesce(ran.run_s, 0))
        as waited_s
from jobs
left join last_ends using (job_id)
left join ran using (job_id)
left join pool_clock on pool_clock.pool = jobs.pool;
