-- How good forecasts were, by how far ahead they were. Of each job count its very first forecast (horizon
-- 'first'), and the first one that was made from each other distance: a job with many forecasts weighs no more.
--   covered_percent   how many jobs were no later than the 90th percentile: 90 if it is right
--   jobs              also those that are later than their 90th percentile and of which no error is known yet
--   error_percent     the mean error as a part of the mean horizon of the same jobs
create or replace view eta_quality as
with placed as (
    select
        *,
        case
            when horizon_s < 60 then 'under 1 min'
            when horizon_s < 600 then '1 to 10 min'
            when horizon_s < 3600 then '10 to 60 min'
            when horizon_s < 21600 then '1 to 6 h'
            else 'over 6 h'
        end as horizon
    from eta_errors
),
counted as (
    (select * from placed qualify row_number() over (partition by job_id, quantity, horizon order by made) = 1)
    union all
    (
        select * replace ('first' as horizon) from placed
        qualify row_number() over (partition by job_id, quantity order by made) = 1
    )
)
select
    pool,
    policy,
    quantity,
    horizon,
    count(*) as forecasts,
    count(distinct job_id) as jobs,
    100 * avg(covered::integer) as covered_percent,
    avg(abs(p50_error_s)) as mean_abs_error_s,
    median(p50_error_s) as median_error_s,
    avg(horizon_s) as mean_horizon_s,
    100 * mean_abs_error_s / nullif(avg(horizon_s) filter (where p50_error_s is not null), 0) as error_percent
from counted
group by pool, policy, quantity, horizon;
