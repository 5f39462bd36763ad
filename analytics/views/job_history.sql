-- One row per job.
--   state         waiting, running or ended
--   policy        the policy that started its last attempt
--   run_s         time on devices over all attempts (until now, while it runs)
--   turnaround_s  ended - submitted, for jobs that ended
--   queueing_s    turnaround - time on devices
create or replace view job_history as
with ran as (
    select
        job_id,
        count(*) as attempts,
        min(started) as first_started,
        arg_max(policy, attempt) as policy,
        bool_or(is_open) as is_open,
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
    case when is_open then 'running' when last_ends.ended is not null then 'ended' else 'waiting' end as state,
    jobs.submitted,
    ran.first_started,
    last_ends.ended,
    last_ends.outcome,
    coalesce(ran.attempts, 0) as attempts,
    ran.policy,
    seconds(jobs.submitted, last_ends.ended) as turnaround_s,
    seconds(jobs.submitted, last_ends.ended) - coalesce(ran.run_s, 0) as queueing_s,
    coalesce(ran.run_s, 0) as run_s
from jobs
left join last_ends using (job_id)
left join ran using (job_id);
