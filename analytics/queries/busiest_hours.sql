-- At which hours of the day are most jobs waiting and running?
-- $pool = : only this pool; all pools when empty.
-- Hours are those of your time zone.
select
    hour(hour) as hour_of_day,
    round(sum(waiting * lasted_s) / sum(lasted_s), 2) as avg_waiting,
    round(sum(running * lasted_s) / sum(lasted_s), 2) as avg_running
from queue_in_hours
where cast($pool as varchar) in ('', pool)
group by hour_of_day
order by avg_running desc, avg_waiting desc, hour_of_day;
