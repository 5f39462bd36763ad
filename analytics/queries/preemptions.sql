-- Who was stopped lately, for whom, and what did it cost?
-- $limit = 20: how many to show.
select
    asked,
    name,
    attempt,
    outcome,
    policy,
    coalesce(nullif(room_names, ''), '-') as room_for,
    round(run_s, 1) as ran_s,
    round(leaving_s, 1) as leaving_s,
    round(lost_s, 1) as lost_s,
    round(waited_s, 1) as waited_s,
    round(restart_s, 1) as restart_s,
    if(gpus_after <> gpus_before, gpus_before || ' to ' || gpus_after, gpus_before::varchar) as gpus,
    is_migration
from preemptions
left join (
    select hosts.job_id, attempt, string_agg(jobs.name, ', ') as room_names
    from (
        select job_id, attempt, unnest(from_json(room_for, '["varchar"]')) as guest from departures
    ) as hosts left join jobs on jobs.job_id = guest
    group by hosts.job_id, attempt
) using (job_id, attempt)
order by asked desc
limit cast($limit as bigint);
