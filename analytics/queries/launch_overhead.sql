-- How long does it take from a policy's decision until the job runs?
select
    pool,
    runtime,
    count(*) as attempts,
    round(median(seconds(planned, started)), 3) as p50_s,
    round(quantile_cont(seconds(planned, started), 0.9), 3) as p90_s,
    round(max(seconds(planned, started)), 3) as max_s
from attempt_history
group by pool, runtime
order by pool, runtime;
