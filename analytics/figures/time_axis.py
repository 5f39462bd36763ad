"""The time axis. Times are dates in local time; those of a simulation, whose clock starts at the epoch, are
durations since then.

Dates have the offset from UTC that is in force at the end, also before summer time began or ended: otherwise
an hour of the axis would lack or come twice, and bars, whose lengths are durations, would overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from gpu_flows.analytics.figures.theme import format_duration

_SIMULATED = 5 * 365 * 86_400.0  # no real pool has facts of these first years after the epoch
MOST_TICKS = 6  # dates are wide, and turned ones are hard to read
_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def seconds_of(time: Any) -> float:
    """Return a time as seconds since the epoch: a timestamp of a query, or the seconds of a simulation."""
    return time.timestamp() if isinstance(time, datetime) else float(time)


def _offset(seconds: float) -> timedelta:
    """Return how far local time is ahead of UTC at this time."""
    return datetime.fromtimestamp(seconds).astimezone().utcoffset() or timedelta()


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """How the times between two seconds are drawn."""

    first: float
    last: float

    @property
    def has_dates(self) -> bool:
        return self.last >= _SIMULATED

    @property
    def _unit(self) -> tuple[str, float]:
        span = self.last - self.first
        return next((unit for unit in _UNITS if span >= 3 * unit[1]), _UNITS[-1])

    def at(self, seconds: float) -> str | float:
        """Return the position of a time on the axis."""
        if not self.has_dates:
            return seconds / self._unit[1]
        return self._date(seconds).isoformat(sep=" ", timespec="milliseconds")

    def length(self, seconds: float) -> float:
        """Return the length of a bar that takes so long."""
        return 1000 * seconds if self.has_dates else seconds / self._unit[1]

    def label(self, seconds: float) -> str:
        """Return a time as a hover text has it."""
        if not self.has_dates:
            return format_duration(seconds)
        return self._date(seconds).isoformat(sep=" ", timespec="seconds")

    def _date(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, timezone(_offset(self.last))).replace(tzinfo=None)

    def layout(self) -> dict[str, Any]:
        """Return the settings of plotly's axis."""
        ends = [self.at(self.first), self.at(max(self.last, self.first + 1e-3))]
        if self.has_dates:
            changes = _offset(self.first) != _offset(self.last)
            zone = str(timezone(_offset(self.last))) if changes else ""
            return {"type": "date", "range": ends, "nticks": MOST_TICKS, "title": {"text": zone}}
        return {"type": "linear", "range": ends, "title": {"text": f"{self._unit[0]} of the simulation"}}
