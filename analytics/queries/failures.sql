-- What failed lately, where and why?
-- $limit = 20: how many to show.
select time, job_id, attempt, name, user_name, nodes, outcome, exit_code, detail
from failures
order by time desc
limit cast($limit as bigint);
