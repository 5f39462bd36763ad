-- When was the policy changed, and which changes were refused?
-- $limit = 50: how many to show.
select time, pool, from_policy, to_policy, options, coalesce(nullif(error, ''), 'in force') as result
from swaps
order by time desc
limit cast($limit as bigint);
