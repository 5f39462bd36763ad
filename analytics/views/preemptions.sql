-- One row per attempt that was asked to leave its devices, and how the job went on.
--   kind        preempted (it waited again), moved (to other devices at once) or resized
--   outcome     the same, or how it ended instead: it may have finished, or been cancelled, while it left
--   leaving_s   from being asked until it was gone
--   lost_s      time on devices that nothing came of, because it was not saved
--   waited_s    from then until its next attempt started
--   restart_s   from that start until it had loaded its checkpoint; NULL where the job does not tell
--   is_migration  whether the next attempt ran on other nodes
create or replace view preemptions as
with following as (
    select job_id, attempt, lead(attempt) over (partition by job_id order by attempt) as next_attempt
    from attempts
)
select
    job_id,
    departures.attempt,
    history.pool,
    history.name,
    history.user_name,
    departures.policy,
    departures.kind,
    history.outcome,
    departures.room_for,
    departures.asked,
    departures.gone,
    history.run_s,
    seconds(departures.asked, departures.gone) as leaving_s,
    coalesce(saved.lost_s, 0) as lost_s,
    seconds(departures.gone, following_history.started) as waited_s,
    seconds(following_history.started, following_saved.restored) as restart_s,
    history.gpus as gpus_before,
    following_history.gpus as gpus_after,
    history.nodes as nodes_before,
    following_history.nodes as nodes_after,
    following_history.nodes <> history.nodes as is_migration
from departures
join attempt_history as history using (job_id, attempt)
left join saved_work as saved using (job_id, attempt)
left join following using (job_id, attempt)
left join attempt_history as following_history
    on following_history.job_id = departures.job_id and following_history.attempt = following.next_attempt
left join saved_work as following_saved
    on following_saved.job_id = departures.job_id and following_saved.attempt = following.next_attempt;
