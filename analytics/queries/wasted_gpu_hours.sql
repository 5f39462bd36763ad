-- How many GPU-hours went to attempts that failed, crashed or ran out of memory?
with held as (
    select job_id, attempt, sum(seconds(since, until) / holders) / 3600 as gpu_hours
    from hold_pieces
    group by job_id, attempt
)
select
    user_name,
    outcome,
    count(*) as attempts,
    count(distinct job_id) as jobs,
    round(coalesce(sum(held.gpu_hours), 0), 3) as gpu_hours
from attempt_history left join held using (job_id, attempt)
where outcome in ('failed', 'crashed', 'lost', 'out_of_memory')
group by user_name, outcome
order by gpu_hours desc, user_name, outcome;
