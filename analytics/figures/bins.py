"""SQL that cuts periods at the edges of equal intervals, so that each interval gets its part of them."""

from __future__ import annotations


def cut(periods: str, bins: int) -> str:
    """Return common table expressions, two of them to use: `clock`, with the begin and the length of the
    intervals in seconds (first_s, bin_s), and `pieces`, the rows of `periods` (since, until, ...), cut, with
    the number of its interval (bin), when that begins (time), and how long the piece is (within_s)."""
    return f"""clock as (
    select epoch($since) as first_s, greatest(seconds($since, $until), 1e-3) / {bins} as bin_s
),
clipped as (
    select *, epoch(greatest(since, $since)) as since_s, epoch(least(until, $until)) as until_s
    from {periods}, clock
    where since < $until and until > $since
),
touched as (
    select *, unnest(range(
        cast(floor((since_s - first_s) / bin_s) as bigint),
        least(cast(floor((until_s - first_s) / bin_s) as bigint) + 1, {bins})
    )) as bin
    from clipped
),
pieces as (
    select *, to_timestamp(first_s + bin * bin_s) as time,
        greatest(
            0, least(until_s, first_s + (bin + 1) * bin_s) - greatest(since_s, first_s + bin * bin_s)
        ) as within_s
    from touched
)"""
