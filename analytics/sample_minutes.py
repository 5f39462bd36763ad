"""Rolls samples up into minutes when they are an hour old, and deletes those that are not kept any longer.

`roll_up` moves the end of the minutes (`sample_clock.rolled_until`) by at most an hour, in one transaction,
so that it happens once and the file is open for a moment. Minutes are split where a device was taken or
released, or the policy changed (the view sample_edges), so every answer is the same as from the samples.

A fact that arrives after its minute was rolled up is noted in `late_minutes`, in the transaction that loads
it, and `roll_up` repeats that hour. This is not possible after the samples were deleted: late samples are
then added as pieces of their own, and a late edge divides the piece that it is in evenly. Facts from before
the first sample, as those of a simulation, whose clock begins in 1970, are never late.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import duckdb

from gpu_flows.analytics.insert_statements import INCOMING

AGE = timedelta(hours=1)  # samples are rolled up at this age
STEP = timedelta(hours=1)  # at most this much time in one transaction
LEAST_STEP = timedelta(minutes=10)  # not more often than this much time has passed
MINUTE, VALID = timedelta(minutes=1), timedelta(seconds=10)
# Samples are kept for this time before `kept_since`: a last reading extends into the next minute, also when
# late facts repeat the minute in which it does.
MARGIN = 2 * MINUTE

_HAVE_EDGES = ["samples", "swaps", "allocations", "attempt_ends", "job_ends", "attempts", "jobs"]


def note_late_facts(warehouse: duckdb.DuckDBPyConnection) -> None:
    """Note the minutes of staged facts that are rolled up already, and those next to them."""
    warehouse.execute(_NOTE_LATE_FACTS, [_HAVE_EDGES])


def roll_up(warehouse: duckdb.DuckDBPyConnection, now: datetime) -> bool:
    """Roll up the next hour of samples, or repeat an hour for late facts, in one transaction. Returns whether
    there was anything to do."""
    rolled_until, kept_since = _read_clock(warehouse)
    target = _floor(now - AGE)
    if target - rolled_until < LEAST_STEP:
        return _repeat_late_minutes(warehouse, rolled_until, kept_since)
    first = _find_time(warehouse, "select min(time) from samples where time >= $1", rolled_until - VALID)
    since = min(target, max(rolled_until, _floor(first))) if first else target
    until = min(since + STEP, target)
    warehouse.execute("begin")
    if until > since:
        _insert_minutes(warehouse, since, until)
    warehouse.execute("update sample_clock set rolled_until = $1", [until])
    warehouse.execute("commit")
    return True


def delete_old_samples(warehouse: duckdb.DuckDBPyConnection, before: datetime) -> bool:
    """Delete an hour of the samples that were taken before this time and are rolled up. Returns whether there
    was anything to do."""
    rolled_until, kept_since = _read_clock(warehouse)
    first = _find_time(warehouse, "select min(time) from samples")
    if first is None:
        return False
    until = _floor(min(before, rolled_until, max(first, kept_since) + STEP))
    if until <= kept_since:
        return False
    warehouse.execute("begin")
    warehouse.execute("delete from samples where time < $1", [until - MARGIN])
    warehouse.execute("update sample_clock set kept_since = $1", [until])
    warehouse.execute("commit")
    return True


def _repeat_late_minutes(
    warehouse: duckdb.DuckDBPyConnection, rolled_until: datetime, kept_since: datetime
) -> bool:
    earliest = "select min(minute) from late_minutes"
    if (since := _find_time(warehouse, earliest)) is None:
        return False
    warehouse.execute(_DELETE_EMPTY_MINUTES, {"since": since})
    if (since := _find_time(warehouse, earliest)) is None:
        return True
    until = min(since + STEP, rolled_until)
    warehouse.execute("begin")
    if since >= kept_since - MARGIN:
        warehouse.execute("delete from sample_minutes where since >= $1 and since < $2", [since, until])
        _insert_minutes(warehouse, since, until)
    else:  # the samples of then were deleted: these are the late ones
        until = min(until, kept_since - MARGIN)
        _insert_minutes(warehouse, since, until)
        warehouse.execute("delete from samples where time >= $1 and time < $2", [since, until])
    warehouse.execute("delete from late_minutes where minute >= $1 and minute < $2", [since, until])
    warehouse.execute("commit")
    return True


def _insert_minutes(warehouse: duckdb.DuckDBPyConnection, since: datetime, until: datetime) -> None:
    warehouse.execute(_INSERT_MINUTES, {"since": since, "until": until})
    warehouse.execute(_FOLLOWED, {"since": since, "until": until})


def _read_clock(warehouse: duckdb.DuckDBPyConnection) -> tuple[datetime, datetime]:
    [(rolled_us, kept_us)] = warehouse.execute(_CLOCK).fetchall()
    return _from_us(rolled_us), _from_us(kept_us)


def _find_time(warehouse: duckdb.DuckDBPyConnection, sql: str, *values: object) -> datetime | None:
    [(us,)] = warehouse.execute(f"select epoch_us(({sql}))", list(values)).fetchall()
    return None if us is None else _from_us(us)


def _from_us(us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def _floor(time: datetime) -> datetime:
    return time.replace(second=0, microsecond=0)


_CLOCK = "select epoch_us(rolled_until), epoch_us(kept_since) from sample_clock"

_NOTE_LATE_FACTS = f"""
insert into late_minutes
select distinct make_timestamptz(60_000_000 * minute)
from (
    select is_sample, unnest([(us - 10_000_000) // 60_000_000, (us + 10_000_000) // 60_000_000]) as minute
    from (
        select
            table_name = 'samples' as is_sample,
            try_cast(1e6 * try_cast(
                coalesce(
                    fact ->> '$.time',
                    fact ->> '$.since',
                    fact ->> '$.ended',
                    fact ->> '$.started',
                    fact ->> '$.submitted'
                ) as double
            ) as bigint) as us
        from {INCOMING}
        where list_contains($1, table_name)
    )
    where us > 0 and us < (select epoch_us(rolled_until) from sample_clock)
)
where minute < (select epoch_us(rolled_until) // 60_000_000 from sample_clock)
    and (is_sample or minute >= (select epoch_us(min(since)) // 60_000_000 from sample_minutes))
"""

# Those in which there is nothing to roll up. A sample can extend into the next minute.
_DELETE_EMPTY_MINUTES = """
delete from late_minutes
where epoch_us(minute) // 60_000_000 not in (
    select epoch_us(since) // 60_000_000 from sample_minutes where since >= $since
    union
    select unnest([epoch_us(time) // 60_000_000, (epoch_us(time) + 10_000_000) // 60_000_000])
    from samples
    where time >= make_timestamptz(epoch_us($since) - 10_000_000)
        and time < (select rolled_until from sample_clock)
)
"""

_INSERT_MINUTES = """
insert into sample_minutes
with taken as (
    select *, lead(time) over (partition by device_id order by time) as next_time
    from samples
    where time >= make_timestamptz(epoch_us($since) - 10_000_000)
        and time < make_timestamptz(epoch_us($until) + 10_000_000)
),
later as (
    select device_id from samples where time >= $until
    union
    select device_id from sample_minutes where since >= $until
),
valid as (
    select
        *,
        next_time is null and device_id not in (from later) as is_last,
        make_timestamptz(least(epoch_us(time) + 10_000_000, epoch_us(next_time))) as valid_until
    from taken
),
readings as (
    select
        device_id,
        greatest(time, $since) as since,
        if(is_last, valid_until, least(valid_until, $until)) as until,
        if(time >= $since, 1, 0) as samples,
        is_last,
        utilization,
        memory_used_mb,
        power_w,
        temperature_c
    from valid
    where time < $until and (time >= $since or (valid_until > $since and not is_last))
),
cuts as (
    select device_id, unnest(generate_series($since, $until, interval 1 minute)) as cut
    from (select distinct device_id from readings)
    union
    select device_id, time from sample_edges where time > $since and time < $until
),
-- each reading, and each part of one that begins at a cut within it
starts as (
    from readings
    union all by name
    select longer.* replace (cut as since, 0 as samples)
    from cuts asof join (from readings where until > since and not is_last) as longer
        on longer.device_id = cuts.device_id and longer.since < cuts.cut
    where cut < longer.until
),
pieces as (
    select * replace (if(is_last, until, least(until, next_since)) as until)
    from (select *, lead(since) over (partition by device_id order by since, until) as next_since from starts)
)
select
    pieces.device_id,
    min(since),
    max(until),
    sum(samples),
    sum(seconds(since, until)),
    mean_over_time(utilization, seconds(since, until)),
    mean_over_time(memory_used_mb, seconds(since, until)),
    mean_over_time(power_w, seconds(since, until)),
    mean_over_time(temperature_c, seconds(since, until)),
    max(utilization),
    max(memory_used_mb),
    max(power_w),
    min(temperature_c),
    max(temperature_c),
    is_last
from pieces asof join cuts on cuts.device_id = pieces.device_id and cuts.cut <= pieces.since
group by
    pieces.device_id,
    cut,
    is_last,
    utilization is null,
    memory_used_mb is null,
    power_w is null,
    temperature_c is null
order by min(since)
"""

# A device's last sample of all is followed by another one now.
_FOLLOWED = """
update sample_minutes set is_last = false
where is_last and exists (
    from samples
    where samples.device_id = sample_minutes.device_id
        and samples.time >= $since and samples.time < $until and samples.time > sample_minutes.since
)
"""
