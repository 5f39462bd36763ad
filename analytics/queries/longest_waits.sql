-- Which jobs waited longest for devices, including those that still wait?
-- $limit = 20: how many to show.
select job_id, name, user_name, gpus, state, submitted, round(waited_s, 1) as waited_s
from (
    select job_id, name, user_name, gpus, state, submitted, queueing_s as waited_s
    from job_history
    where state = 'ended' and attempts > 0
    union all
    select job_id, name, user_name, gpus, 'waiting', submitted, waited_s from waiting_now
) as waits
order by waits.waited_s desc
limit cast($limit as bigint);
