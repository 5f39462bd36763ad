-- How do the policies compare?
-- $pool = : only this pool; all pools when empty.
select * exclude (scope, experiment)
from policy_figures
where scope = 'pool' and cast($pool as varchar) in ('', pool)
order by pool, avg_turnaround_s;
