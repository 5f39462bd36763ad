-- What the network costs each attempt that has ended.
--   comm_s         the time for which its devices waited for the network; known of simulated attempts only
--   comm_percent   that part of its time on devices
--   work_per_hour  the part of the job that it did per hour, from the first to the last report of its progress;
--                  NULL if it has reported less than twice
--   slowdown       how many times as long the same work took as in attempts of this job with as many devices of one
--                  node; NULL if there is no such attempt. It is measured, so it contains whatever else differed.
create or replace view communication as
with progress as (
    select
        job_id,
        attempt,
        3600 * (max(fraction) - min(fraction)) / nullif(seconds(min(time), max(time)), 0) as work_per_hour
    from progress_reports
    group by job_id, attempt
),
measured as (
    select
        history.pool,
        history.experiment,
        job_id,
        attempt,
        history.name,
        history.policy,
        history.gpus,
        tiers.tier,
        history.run_s,
        attempt_ends.comm_s,
        100 * attempt_ends.comm_s / nullif(history.run_s, 0) as comm_percent,
        nullif(progress.work_per_hour, 0) as work_per_hour
    from attempt_history as history
    join attempt_ends using (job_id, attempt)
    join attempt_tiers as tiers using (job_id, attempt)
    left join progress using (job_id, attempt)
)
select
    *,
    avg(work_per_hour) filter (where tier = 'node') over (partition by job_id, gpus) / work_per_hour as slowdown
from measured;
