-- Which jobs took longest from submission to end?
-- $limit = 20: how many to show.
select job_id, name, user_name, gpus, policy, outcome, submitted,
    round(turnaround_s, 1) as turnaround_s, round(queueing_s, 1) as queueing_s, round(run_s, 1) as run_s
from job_history
where state = 'ended' and attempts > 0
order by job_history.turnaround_s desc
limit cast($limit as bigint);
