-- How much longer each user's jobs took than they ran, on average. A job's slowdown is its turnaround / its time on
-- devices: what it would have taken alone, without a queue. That time is measured, so it is longer than it would
-- have been alone by what was lost or saved when the job was stopped, and by devices that were slow or shared.
create or replace view fairness as
select pool, user_name, count(*) as jobs, avg(turnaround_s / run_s) as mean_slowdown
from job_history
where state = 'ended' and attempts > 0 and run_s > 0
group by pool, user_name;
