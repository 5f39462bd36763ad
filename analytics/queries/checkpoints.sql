-- How often do jobs save, how long does that take, and how much is it?
-- $limit = 20: how many to show.
select
    name,
    attempt,
    outcome,
    saves,
    round(save_s / nullif(saves, 0), 3) as each_s,
    round(100 * save_s / nullif(run_s, 0), 2) as percent_of_run,
    round(saved_bytes / 1e6, 1) as last_mb,
    last_step,
    restored_step,
    round(restore_s, 3) as restore_s,
    round(lost_s, 1) as lost_s
from saved_work join attempt_history using (job_id, attempt)
order by started desc
limit cast($limit as bigint);
