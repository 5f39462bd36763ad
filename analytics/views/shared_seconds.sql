-- shared_seconds(a, b, c, d): how long the period from a to b and the period from c to d overlap.
create or replace macro shared_seconds(since, until, other_since, other_until) as
    greatest(0, seconds(greatest(since, other_since), least(until, other_until)));
