-- How much worse was the policy than the best one, night by night?
-- $pool = : only this pool; all pools when empty.
select time, pool, since, until, policy, best, regret_percent, jobs
from regrets
where cast($pool as varchar) in ('', pool)
order by pool, time desc;
