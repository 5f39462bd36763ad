"""The wall clock, in UTC, and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LONGEST_S = 10 * 365 * 86_400.0  # no job takes longer, and nothing is foreseen further ahead

NEAR_S = 120.0


def utc_now() -> datetime:
    return datetime.now(UTC)


def describe_time(when: float, now: float, with_zone: bool = False) -> str:
    """Return a local time as it is shown to people: `14:20`, with seconds if it is near and with the day if
    it is not today. A text that is read elsewhere needs the zone."""
    return _describe(when, now, with_zone, with_seconds=abs(when - now) < NEAR_S)


def describe_late(when: float, late: float, now: float, with_zone: bool = False) -> str:
    """Return the later one of two times as precisely as `describe_time` the earlier one; empty if the two
    look the same."""
    shown = _describe(late, now, with_zone, with_seconds=abs(when - now) < NEAR_S)
    return "" if shown == describe_time(when, now, with_zone) else shown


def _describe(when: float, now: float, with_zone: bool, with_seconds: bool) -> str:
    try:
        at, today = datetime.fromtimestamp(when).astimezone(), datetime.fromtimestamp(now).astimezone()
    except (ValueError, OverflowError, OSError):  # of a time that no calendar has
        return "after the year 9999"
    zone = f" {at:%Z}" if with_zone else ""
    if at.date() == today.date() or abs(when - now) < NEAR_S:
        return f"{at:%H:%M:%S}{zone}" if with_seconds else f"{at:%H:%M}{zone}"
    return f"{at:%a %H:%M}{zone}" if abs(at - today) < timedelta(days=6) else f"{at:%Y-%m-%d %H:%M}{zone}"
