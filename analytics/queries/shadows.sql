-- Would another policy do better? What the shadows would have decided, and the turnaround under them.
-- $pool = : only this pool; all pools when empty.
select *
from shadow_ranking
where cast($pool as varchar) in ('', pool)
order by pool, policy, rank;
