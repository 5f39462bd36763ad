-- Where do jobs run under each policy, and how much of their time does the network take?
-- $pool = : only this pool; all pools when empty.
select
    pool,
    policy,
    coalesce(tier, 'unknown') as tier,
    count(*) as attempts,
    count(distinct job_id) as jobs,
    round(sum(gpus * run_s) / 3600, 3) as gpu_hours,
    round(sum(comm_s), 1) as comm_s,
    -- of the attempts of which it is known
    round(100 * sum(comm_s) / nullif(sum(run_s) filter (where comm_s is not null), 0), 1) as comm_percent,
    round(median(slowdown) filter (where tier <> 'node'), 2) as measured_slowdown
from communication
where gpus > 1 and cast($pool as varchar) in ('', pool)
group by pool, policy, communication.tier
order by pool, policy, gpu_hours desc;
