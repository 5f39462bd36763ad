-- The shadows of each pool beside each policy that was in force: how often they agree with it, and the
-- turnaround that was projected under them. Rank 1 has the shortest one (see shadow_turnaround).
create or replace view shadow_ranking as
select
    coalesce(agreement.pool, projected.pool) as pool,
    coalesce(agreement.policy, projected.policy) as policy,
    coalesce(agreement.shadow, projected.shadow) as shadow,
    row_number() over (
        partition by coalesce(agreement.pool, projected.pool), coalesce(agreement.policy, projected.policy)
        order by turnaround_percent nulls last, agreement_percent desc nulls last,
            coalesce(agreement.shadow, projected.shadow)
    ) as rank,
    coalesce(decisions, 0) as decisions,
    agreement_percent,
    turnaround_percent,
    makespan_percent,
    coalesce(projections, 0) as projections,
    avg_us,
    p99_us,
    coalesce(errors, 0) as errors,
    coalesce(skipped, 0) as skipped
from shadow_agreement as agreement
full join shadow_turnaround as projected
    on (projected.pool, projected.policy, projected.shadow)
    = (agreement.pool, agreement.policy, agreement.shadow);
