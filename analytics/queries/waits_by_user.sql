-- Who waited longest this week?
-- $days = 7: how far back to look from the pool's last fact.
select
    user_name,
    count(*) as jobs,
    round(avg(waited_s), 1) as avg_waited_s,
    round(max(waited_s), 1) as longest_s,
    arg_max(name, waited_s) as longest
from job_history join pool_clock using (pool)
where seconds(submitted, last_fact) <= 86400 * cast($days as double) and (attempts > 0 or state = 'waiting')
group by user_name
order by longest_s desc, user_name;
