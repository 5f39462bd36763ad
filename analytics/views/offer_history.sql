-- One row per offer of devices to a waiting job; see the table offers. Offers that repeat the last one are not
-- recorded, so a declined offer stands for all of its tier until the next row of the job.
--   more_s          how much longer the job would have declined this tier then; NULL for ever
--   waited_after_s  from a declined offer until the job took one; NULL if it has not
create or replace view offer_history as
select
    offers.time,
    offers.pool,
    job_id,
    jobs.name,
    jobs.user_name,
    jobs.experiment,
    jobs.gpus,
    offers.policy,
    offers.tier,
    offers.accepted,
    offers.waited_s,
    offers.patience_s,
    if(accepted or patience_s is null, null, greatest(0, patience_s - waited_s)) as more_s,
    offers.slowdown,
    offers.sensitivity,
    if(accepted, null, seconds(offers.time, min(if(accepted, offers.time, null)) over later)) as waited_after_s
from offers left join jobs using (job_id)
window later as (partition by job_id order by offers.time rows between current row and unbounded following);
