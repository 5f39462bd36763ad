-- One row per pool, policy in force and shadow: how its plans compare with the decisions of that policy.
--   agreement_percent  moves (starts and preemptions) that both made, of those that one of them made
--   errors             plans that failed or took too long, after which it was suspended
--   skipped            decisions about which it was not asked, for lack of time
create or replace view shadow_agreement as
select
    pool,
    policy,
    shadow,
    count(*) filter (error = '') as decisions,
    100 * avg(agreement) filter (error = '') as agreement_percent,
    100 * avg(cast(same_jobs as integer)) filter (error = '') as same_jobs_percent,
    100 * avg(cast(same_devices as integer)) filter (error = '') as same_devices_percent,
    avg(took_us) filter (error = '') as avg_us,
    quantile_cont(took_us, 0.99) filter (error = '') as p99_us,
    count(*) filter (error != '') as errors,
    sum(skipped) as skipped,
    max(time) as last
from shadow_decisions
group by pool, policy, shadow;
