-- Who used how many GPU-hours?
-- $pool = : only this pool; all pools when empty.
select
    pool,
    user_name,
    round(gpu_hours, 3) as gpu_hours,
    round(100 * gpu_hours / sum(gpu_hours) over (partition by pool), 1) as percent
from gpu_hours
where cast($pool as varchar) in ('', pool)
order by pool, gpu_hours.gpu_hours desc, user_name;
