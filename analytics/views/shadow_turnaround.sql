-- One row per pool, policy in force and shadow: the turnaround that was projected under both, of the same jobs
-- at the same moments.
--   turnaround_percent  how much lower (-) or higher it is under the shadow
--   makespan_percent    the same for the time from the first submission to the last end
create or replace view shadow_turnaround as
select
    under.pool,
    under.policy,
    under.shadow,
    count(*) as projections,
    100 * (sum(under.jobs * under.turnaround_s) / nullif(sum(under.jobs * real.turnaround_s), 0) - 1)
        as turnaround_percent,
    100 * (sum(under.makespan_s) / nullif(sum(real.makespan_s), 0) - 1) as makespan_percent
from shadow_projections as under
join shadow_projections as real
    on real.pool = under.pool and real.time = under.time and real.policy = under.policy
    and real.shadow = real.policy
where under.shadow != under.policy
group by under.pool, under.policy, under.shadow;
