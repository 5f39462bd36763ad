-- Each recorded forecast of when a job starts, or ends, beside when it really did. Starts count for jobs that
-- started, and ends for jobs that completed. What has not happened counts as soon as it is later than the 90th
-- percentile: its errors are NULL. A start that had been decided when the forecast was made is left out.
--   horizon_s     how far ahead the median was
--   happened      NULL: not yet, or never, because the job ended otherwise
--   p50_error_s   by how much the job was later than the median; below 0 if it was earlier
--   covered       whether it was no later than the 90th percentile
create or replace view eta_errors as
with told as (
    select pool, job_id, policy, time as made, 'start' as quantity, start_p50 as p50, start_p90 as p90 from forecasts
    union all
    select pool, job_id, policy, time as made, 'end' as quantity, end_p50 as p50, end_p90 as p90 from forecasts
)
select
    told.pool,
    told.job_id,
    job_history.name,
    told.policy,
    made,
    quantity,
    seconds(made, p50) as horizon_s,
    if(quantity = 'start', first_started, if(outcome = 'completed', ended, null)) as happened,
    seconds(p50, happened) as p50_error_s,
    seconds(p90, happened) as p90_error_s,
    coalesce(happened <= p90, false) as covered
from told
join job_history using (job_id)
join pool_clock on pool_clock.pool = told.pool
where if(happened is null, p90 < coalesce(ended, last_fact), made < happened) and (quantity = 'end' or p50 > made);
