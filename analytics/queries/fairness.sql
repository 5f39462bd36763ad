-- How fairly are users served?
-- $pool = : only this pool; all pools when empty.
-- Jain's index of the users' slowdowns is 1 if all are equal, and 1 / users if one has it all.
select
    pool,
    user_name,
    jobs,
    round(mean_slowdown, 2) as mean_slowdown,
    round(
        sum(mean_slowdown) over users * sum(mean_slowdown) over users
            / (count(*) over users * sum(mean_slowdown * mean_slowdown) over users),
        3
    ) as jain_index
from fairness
where cast($pool as varchar) in ('', pool)
window users as (partition by pool)
order by pool, mean_slowdown desc, user_name;
