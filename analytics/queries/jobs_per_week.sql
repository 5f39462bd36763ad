-- How many jobs does each user submit per week?
-- $weeks = 8: how many weeks to show. A week begins on Monday.
select
    date_trunc('week', submitted)::date as week,
    user_name,
    count(*) as jobs,
    round(coalesce(sum(job_gpu_hours.gpu_hours), 0), 3) as gpu_hours
from job_history left join job_gpu_hours using (pool, job_id)
where week > (select date_trunc('week', max(last_fact))::date from pool_clock) - 7 * cast($weeks as integer)
group by week, user_name
order by week desc, jobs desc, user_name;
