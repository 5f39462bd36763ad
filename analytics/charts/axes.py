"""The axes of a chart, and the durations on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gpu_flows.analytics.charts.layout import FAINT, GRID, LEFT, TOP
from gpu_flows.analytics.charts.sheet import Sheet

_STEPS = (
    *(base * 10.0**power for power in range(-6, 0) for base in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
_MARKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 21_600, 86_400, 604_800, 2_592_000, 8_640_000, 86_400_000)


@dataclass(frozen=True, slots=True)
class LinearAxis:
    """An axis on which equal distances are equal durations."""

    first: float
    last: float

    def at(self, value: float) -> float:
        """Return the position of a value: 0 at the left end, 1 at the right."""
        return (value - self.first) / ((self.last - self.first) or 1.0)

    def ticks(self) -> Iterator[tuple[float, str]]:
        span = self.last - self.first
        step = next((step for step in _STEPS if span / step <= 9), _STEPS[-1])
        for number in range(math.ceil(self.first / step), math.floor(self.last / step + 1e-9) + 1):
            yield number * step, format_duration(number * step)


@dataclass(frozen=True, slots=True)
class LogarithmicAxis:
    """An axis on which equal distances are equal ratios."""

    first: float
    last: float

    def at(self, value: float) -> float:
        return math.log(value / self.first) / math.log(self.last / self.first)

    def ticks(self) -> Iterator[tuple[float, str]]:
        for mark in _MARKS:
            if self.first <= mark <= self.last:
                yield mark, format_duration(mark)


def format_duration(seconds: float) -> str:
    """Format a duration in at most two units: `0`, `0.1s`, `1m 30s`, `1d 12h`."""
    if seconds < 60:
        return f"{seconds:.3g}s" if seconds else "0"
    parts, rest = [], round(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,}{unit}")
    return " ".join(parts[:2])


def draw_time_axis(
    sheet: Sheet, axis: LinearAxis | LogarithmicAxis, width: float, height: float, name: str
) -> None:
    """Draw the ticks and the name of the axis below the plot. A label that would overlap is left out."""
    free_from = -math.inf
    for value, label in axis.ticks():
        x = LEFT + width * axis.at(value)
        sheet.rule(x, TOP, x, TOP + height, GRID)
        if x - 3.4 * len(label) >= free_from:
            sheet.text(x, TOP + height + 18, label, anchor="middle", fill=FAINT)
            free_from = x + 3.4 * len(label) + 8
    sheet.text(LEFT + width / 2, TOP + height + 42, name, anchor="middle", fill=FAINT)
