-- How many GPU-hours went to attempts that failed, crashed or ran out of memory?
select
    user_name,
    outcome,
    count(*) as attempts,
    count(distinct job_id) as jobs,
    round(sum(gpus * run_s) / 3600, 3) as gpu_hours
from attempt_history
where outcome in ('failed', 'crashed', 'lost', 'out_of_memory')
group by user_name, outcome
order by gpu_hours desc, user_name, outcome;
