"""Durations and amounts of memory, as people write them (`90`, `1h30m`, `4GB`) and as we show them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_MEGABYTES = {
    f"{prefix}{suffix}": 2.0**exponent
    for prefix, exponent in {"k": -10, "m": 0, "g": 10, "t": 20}.items()
    for suffix in ("", "b", "ib")
}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_PARTS = re.compile(rf"(?:{_NUMBER}\s*([a-z]+)\s*)+")


def parse_duration(value: str | float) -> float:
    """Return the seconds of `90`, `90s`, `15m`, `2h`, `1h30m`, `1d` or `01:30:00`. Raises ValueError."""
    text = str(value).strip().lower()
    seconds = _parse_clock(text)
    if seconds is None:
        seconds = _parse(text, "s", _SECONDS)
    if seconds is None:
        raise ValueError(f"{value!r} is no duration; write seconds, or a value like 90s, 15m, 1h30m or 2d")
    return seconds


def parse_megabytes(value: str | float, unit: str = "GB") -> int:
    """Return the megabytes of `4GB`, `512MB`, `1.5T` or `4`; `unit` is that of a bare number.

    A unit is 1024 times the one below it. Raises ValueError."""
    megabytes = _parse(str(value).strip().lower(), unit.lower(), _MEGABYTES)
    if megabytes is None:
        raise ValueError(
            f"{value!r} is no amount of memory; write {unit}, or a value like 512MB, 4GB or 1.5TB"
        )
    return round(megabytes)


def format_duration(seconds: float) -> str:
    """`42s`, `3m 20s`, `5h 07m`, `2d 04h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02d}h"


def _parse(text: str, bare: str, units: Mapping[str, float]) -> float | None:
    """Return the sum of all parts such as `1h` and `30m`, or None if the text is not of that form."""
    try:
        number = float(text)
    except ValueError:
        if not _PARTS.fullmatch(text):
            return None
        parts = re.findall(rf"{_NUMBER}\s*([a-z]+)", text)
        if not all(unit in units for _, unit in parts):
            return None
        return sum(float(number) * units[unit] for number, unit in parts)
    return number * units[bare] if math.isfinite(number) and number >= 0 else None


def _parse_clock(text: str) -> float | None:
    """Return the seconds of `HH:MM:SS`."""
    if not (found := re.fullmatch(r"(\d+):([0-5]?\d):([0-5]?\d)", text)):
        return None
    hours, minutes, seconds = map(int, found.groups())
    return 3600.0 * hours + 60 * minutes + seconds
