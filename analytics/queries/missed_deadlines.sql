-- Which jobs missed their deadlines, or are past them now?
-- $limit = 20: how many to show, the latest deadlines first.
select job_id, name, user_name, policy, state, deadline, ended,
    round(seconds(deadline, coalesce(ended, last_fact)), 1) as late_s
from job_history join pool_clock using (pool)
where deadline < coalesce(ended, last_fact) and (attempts > 0 or state = 'waiting')
order by deadline desc, job_id
limit cast($limit as bigint);
