-- One row per attempt that was requested to stop, and how the job continued.
--   kind          preempted (the job waited again), moved (to other devices at once) or resized
--   outcome       the same, or another one if the attempt completed, or was cancelled, while it stopped
--   stopping_s    from the request until its devices were released
--   lost_s        time on devices whose work was not saved
--   waited_s      from the release until the next attempt started
--   restart_s     from that start until the checkpoint was loaded; NULL where the job does not report it
--   is_migration  whether the next attempt ran on other nodes
create or replace view preemptions as
with following as (
    select job_id, attempt, lead(attempt) over (partition by job_id order by attempt) as next_attempt
    from attempts
)
select
    job_id,
    interruptions.attempt,
    history.pool,
    history.name,
    history.user_name,
    interruptions.policy,
    interruptions.kind,
    history.outcome,
    interruptions.freed_for,
    interruptions.requested,
    interruptions.released,
    history.run_s,
    seconds(interruptions.requested, interruptions.released) as stopping_s,
    coalesce(saved.lost_s, 0) as lost_s,
    seconds(interruptions.released, following_history.started) as waited_s,
    seconds(following_history.started, following_saved.restored) as restart_s,
    history.gpus as gpus_before,
    following_history.gpus as gpus_after,
    history.nodes as nodes_before,
    following_history.nodes as nodes_after,
    following_history.nodes <> history.nodes as is_migration
from interruptions
join attempt_history as history using (job_id, attempt)
left join saved_work as saved using (job_id, attempt)
left join following using (job_id, attempt)
left join attempt_history as following_history
    on following_history.job_id = interruptions.job_id and following_history.attempt = following.next_attempt
left join saved_work as following_saved
    on following_saved.job_id = interruptions.job_id and following_saved.attempt = following.next_attempt;
