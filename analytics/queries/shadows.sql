-- Would one of the shadows do better than the policy?
-- $pool = : only this pool; all pools when empty.
select *
from shadow_ranking
where cast($pool as varchar) in ('', pool)
order by pool, policy, rank;
