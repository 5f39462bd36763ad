-- When were devices idle although together they were enough for a waiting job?
-- $limit = 20: how many periods to show, those with most device-seconds first.
-- $pool = : only this pool; all pools when empty.
select pool, since, round(seconds(since, until), 1) as lasted_s, idle_devices, round(idle_device_s, 1) as idle_device_s
from fragmentation
where cast($pool as varchar) in ('', pool)
order by fragmentation.idle_device_s desc, since
limit cast($limit as bigint);
