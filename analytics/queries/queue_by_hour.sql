-- How long was the queue, hour by hour?
-- $days = 1: how far back to look from the pool's last fact.
-- $pool = : only this pool; all pools when empty.
select
    pool,
    hour,
    round(sum(waiting * lasted_s) / sum(lasted_s), 2) as avg_waiting,
    max(waiting) as most_waiting,
    round(sum(running * lasted_s) / sum(lasted_s), 2) as avg_running
from queue_in_hours join pool_clock using (pool)
where cast($pool as varchar) in ('', pool) and seconds(hour, last_fact) < 86400 * cast($days as double)
group by pool, hour
order by pool, hour;
