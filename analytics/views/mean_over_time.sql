-- mean_over_time(value, s): the mean of values, each weighted by its duration of s seconds. NULL values do not
-- count. If all durations are 0, the result is the plain mean.
create or replace macro mean_over_time(value, s) as
    coalesce(sum(value * s) / nullif(sum(s) filter (where value is not null), 0), avg(value));
