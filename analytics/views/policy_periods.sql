-- Which policy was in force in a pool, from when until when. Refused swaps do not count. Before the first swap
-- it is the policy that the swap replaced; without any swap, the one that started the first attempt.
create or replace view policy_periods as
with accepted as (
    select *, row_number() over (partition by pool order by time, rowid) as position
    from swaps
    where coalesce(error, '') = ''
),
first_starts as (
    select pool, arg_min(policy, started) as policy from attempts join jobs using (job_id) group by pool
),
beginnings as (
    select pool, to_policy as policy, options, time as since, position from accepted
    union all
    select pool, if(position is null, first_starts.policy, nullif(from_policy, '')), '', first_fact, 0
    from pool_clock
    left join (from accepted where position = 1) using (pool)
    left join first_starts using (pool)
),
periods as (
    select pool, policy, options, since,
        coalesce(lead(since) over (partition by pool order by since, position), last_fact) as until
    from beginnings join pool_clock using (pool)
    where policy is not null
)
select pool, policy, options, since, until, seconds(since, until) as in_force_s
from periods
where until > since;
