-- How good were the forecasts of when jobs start and end?
-- $pool = : only this pool; all pools when empty.
select
    pool,
    policy,
    quantity,
    horizon,
    jobs,
    round(covered_percent, 1) as covered_percent,
    round(mean_abs_error_s, 1) as mean_abs_error_s,
    round(median_error_s, 1) as median_error_s,
    round(error_percent, 1) as error_percent
from eta_quality
where cast($pool as varchar) in ('', pool)
order by pool, policy, quantity, horizon <> 'first', mean_horizon_s;
