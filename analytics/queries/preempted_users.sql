-- Whose jobs were stopped for others, and what did it cost them?
select
    user_name,
    count(*) as times,
    count(distinct job_id) as jobs,
    round(sum(lost_s * gpus_before) / 3600, 3) as lost_gpu_hours,
    round(sum(waited_s), 1) as waited_s
from preemptions
where outcome in ('preempted', 'moved', 'resized')
group by user_name
order by times desc, user_name;
