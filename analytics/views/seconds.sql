-- seconds(a, b): from a to b, exact to the microsecond. Many times faster than date_diff, which uses a calendar.
create or replace macro seconds(since, until) as (epoch_us(until) - epoch_us(since)) / 1e6;
