-- How the devices of each attempt lie in the cluster.
--   tier   node (all on one node), rack (on several nodes of one rack) or cluster (in several racks); NULL if a
--          node's rack was not recorded before the attempt began
create or replace view attempt_tiers as
with held as (
    select job_id, attempt, jobs.pool, node, min(since) as since, count(*) as gpus
    from allocations left join jobs using (job_id)
    group by job_id, attempt, jobs.pool, node
)
select
    job_id,
    attempt,
    held.pool,
    sum(gpus) as gpus,
    count(*) as nodes,
    count(distinct rack) as racks,
    case
        when count(*) = 1 then 'node'
        when count(rack) < count(*) then null
        when racks = 1 then 'rack'
        else 'cluster'
    end as tier
from held asof left join nodes on nodes.pool = held.pool and nodes.node = held.node and nodes.time <= held.since
group by job_id, attempt, held.pool;
