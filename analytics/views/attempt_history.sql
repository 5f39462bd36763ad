-- One row per attempt. `ended` is NULL if it was not recorded; `run_s` then counts until `until`.
create or replace view attempt_history as
select
    job_id,
    attempt,
    jobs.pool,
    jobs.name,
    jobs.user_name,
    jobs.experiment,
    attempts.policy,
    attempts.runtime,
    attempts.nodes,
    coalesce(held.gpus, 0) as gpus,
    attempts.planned,
    attempts.started,
    attempt_ends.ended,
    attempt_ends.outcome,
    attempt_ends.exit_code,
    attempt_ends.detail,
    attempt_ends.oom_killed,
    attempt_ends.peak_memory_mb,
    is_open,
    until,
    seconds(attempts.started, greatest(attempts.started, until)) as run_s
from attempts
join attempt_spans using (job_id, attempt)
left join jobs using (job_id)
left join attempt_ends using (job_id, attempt)
left join (
    select job_id, attempt, count(*) as gpus from allocations group by job_id, attempt
) as held using (job_id, attempt);
