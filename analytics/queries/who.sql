-- Who uses the devices, and who waits for them?
select
    user_name,
    count(*) as jobs,
    count(*) filter (where state = 'waiting') as waiting,
    count(*) filter (where state = 'running') as running,
    count(*) filter (where outcome = 'completed') as completed,
    round(coalesce(sum(job_gpu_hours.gpu_hours), 0), 3) as gpu_hours,
    -- like job_metrics: a job that was refused, or cancelled while it waited, has no turnaround
    round(avg(turnaround_s) filter (where attempts > 0), 1) as avg_turnaround_s,
    round(avg(queueing_s) filter (where attempts > 0), 1) as avg_queueing_s
from job_history left join job_gpu_hours using (pool, job_id)
group by user_name
order by gpu_hours desc, user_name;
