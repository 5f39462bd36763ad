-- How good predictions were, by quantity, by how they were made, and by the version of the learned predictor.
create or replace view prediction_quality as
select
    quantity,
    how,
    version,
    count(*) as jobs,
    100 * median(abs(error)) as median_error_percent,
    100 * quantile_cont(abs(error), 0.9) as p90_error_percent,
    100 * greatest(0, -min(error)) as worst_under_percent,
    100 * avg(if(broken, 0, 1)) as covered_percent
from prediction_errors
group by quantity, how, version;
