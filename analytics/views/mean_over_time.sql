-- mean_over_time(value, s): the mean of values that each held for s seconds. Unknown values count
-- neither above nor below the line; values that held for no time at all have a plain mean.
create or replace macro mean_over_time(value, s) as
    coalesce(sum(value * s) / nullif(sum(s) filter (where value is not null), 0), avg(value));
