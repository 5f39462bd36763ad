-- Which jobs held GPUs that they hardly used?
-- $percent = 5: the mean utilization below which a GPU counts as unused.
-- $limit = 20: how many to show.
select
    job_id,
    name,
    user_name,
    count(*) as gpus,
    count(*) filter (where job_use.utilization_percent < cast($percent as double)) as unused,
    round(avg(job_use.utilization_percent), 1) as utilization_percent,
    round(sum(held_s) filter (where job_use.utilization_percent < cast($percent as double)) / 3600, 3) as unused_gpu_hours
from job_use join jobs using (pool, job_id)
group by job_id, name, user_name
having count(*) filter (where job_use.utilization_percent < cast($percent as double)) > 0
order by unused_gpu_hours desc, job_id
limit cast($limit as bigint);
