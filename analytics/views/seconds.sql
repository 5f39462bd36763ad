-- seconds(a, b): from a to b, exact to the microsecond. (Many times quicker than date_diff, which asks a
-- calendar.)
create or replace macro seconds(since, until) as (epoch_us(until) - epoch_us(since)) / 1e6;
