-- How many jobs does each user submit per week?
-- $weeks = 8: how many weeks to show. A week begins on Monday.
select
    date_trunc('week', submitted)::date as week,
    user_name,
    count(*) as jobs,
    round(sum(gpus * run_s) / 3600, 3) as gpu_hours
from job_history
where week > (select date_trunc('week', max(last_fact))::date from pool_clock) - 7 * cast($weeks as integer)
group by week, user_name
order by week desc, jobs desc, user_name;
