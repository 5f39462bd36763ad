-- Which policy was best for small jobs?
-- $gpus = 1: they asked for at most this many GPUs.
-- $minutes = 60: and ran for at most this long.
-- The slowdown of a job is its turnaround / its time on devices.
select
    pool,
    policy,
    count(*) as jobs,
    round(avg(turnaround_s), 1) as avg_turnaround_s,
    round(avg(queueing_s), 1) as avg_queueing_s,
    round(avg(turnaround_s / nullif(run_s, 0)), 2) as avg_slowdown
from job_history
where state = 'ended' and attempts > 0
    and gpus between 1 and cast($gpus as bigint)
    and run_s <= 60 * cast($minutes as double)
group by pool, policy
order by pool, avg_slowdown, policy;
