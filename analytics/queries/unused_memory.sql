-- Which jobs asked for more GPU memory than they used?
-- $limit = 20: how many to show.
select job_id, name, user_name, outcome, gpu_memory_mb as requested_mb, round(peak_mb) as peak_mb,
    round(gpu_memory_mb - peak_mb) as unused_mb
from (select job_id, max(peak_mb) as peak_mb from memory_peaks group by job_id) as job_peaks join job_history using (job_id)
where gpu_memory_mb > peak_mb
order by gpu_memory_mb - job_peaks.peak_mb desc, job_id
limit cast($limit as bigint);
