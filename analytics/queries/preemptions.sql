-- Which jobs were stopped lately, for which jobs, and what did it cost?
-- $limit = 20: how many to show.
with beneficiaries as (
    select freed.job_id, freed.attempt, string_agg(jobs.name, ', ') as names
    from (
        select job_id, attempt, unnest(from_json(freed_for, '["varchar"]')) as beneficiary from interruptions
    ) as freed
    left join jobs on jobs.job_id = beneficiary
    group by freed.job_id, freed.attempt
)
select
    requested,
    name,
    attempt,
    outcome,
    policy,
    coalesce(nullif(names, ''), '-') as freed_for,
    round(run_s, 1) as ran_s,
    round(columns('^(stopping|lost|waited|restart)_s$'), 1),
    if(gpus_after <> gpus_before, gpus_before || ' to ' || gpus_after, gpus_before::varchar) as gpus,
    is_migration
from preemptions left join beneficiaries using (job_id, attempt)
order by requested desc
limit cast($limit as bigint);
