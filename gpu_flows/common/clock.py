"""The wall clock, in UTC, and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def utc_now() -> datetime:
    return datetime.now(UTC)


def describe_time(when: float, now: float) -> str:
    """Return a local time as it is shown to people: `14:20`, with seconds if it is near and with the day if
    it is not today."""
    at, today = datetime.fromtimestamp(when).astimezone(), datetime.fromtimestamp(now).astimezone()
    if abs(when - now) < 120:
        return f"{at:%H:%M:%S}"
    if at.date() == today.date():
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}" if abs(at - today) < timedelta(days=6) else f"{at:%Y-%m-%d %H:%M}"
