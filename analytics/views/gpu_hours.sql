-- How long each user's jobs held devices. The time of a device that several jobs share is split evenly among them.
create or replace view gpu_hours as
with counters as (
    select *, sum(share_s) over (partition by pool, device_id order by since) as sum_s
    from (select *, if(holders > 0, seconds(since, until) / holders, 0) as share_s from device_pieces)
)
select holds.pool, user_name, sum(last.sum_s - first.sum_s + first.share_s) / 3600 as gpu_hours
from device_holds as holds
join counters as first using (pool, device_id, since)
join counters as last on last.pool = holds.pool and last.device_id = holds.device_id and last.until = holds.until
join jobs using (job_id)
where holds.until > holds.since
group by holds.pool, user_name;
