-- Attempts that failed, crashed, were lost or ran out of GPU memory (the job then waits for more), and jobs that
-- failed without an attempt that failed (refused ones).
create or replace view failures as
select ended as time, job_id, attempt, pool, name, user_name, policy, nodes, outcome, exit_code, detail
from attempt_history
where outcome in ('failed', 'crashed', 'lost', 'out_of_memory')
union all
select ended, job_id, null, pool, name, user_name, null, null, last_ends.outcome, null, last_ends.detail
from last_ends left join jobs using (job_id)
where last_ends.outcome in ('failed', 'crashed', 'refused')
    and job_id not in (select job_id from attempt_ends where outcome in ('failed', 'crashed', 'lost'));
