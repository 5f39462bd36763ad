"""The calibration chart: each predicted need beside the measured one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpu_flows.analytics.charts.axes import LogarithmicAxis, format_duration
from gpu_flows.analytics.charts.layout import BOTTOM, FAINT, GRID, INK, LEFT, RIGHT, TOP
from gpu_flows.analytics.charts.line_charts import COLOURS
from gpu_flows.analytics.charts.sheet import Sheet, draw_empty_chart, pixels, printable

SIDE = 480.0  # of the plot, in pixels
DOT = 5.0
MOST_DOTS = 1000  # of a colour; beyond this every n-th job is drawn
BROKEN = 'fill="none" stroke="#cf222e" stroke-width="1.6"'


class Point(NamedTuple):
    """A job: what was predicted of it, and what was measured."""

    value: float
    upper: float
    measured: float


class Scale(NamedTuple):
    """How values are written, and which ones are marked on an axis."""

    write: Callable[[float], str]
    marks: Sequence[float]


def _format_mib(mib: float) -> str:
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


MEMORY = Scale(_format_mib, [4.0**power for power in range(11)])
TIME = Scale(format_duration, [0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400])


def draw_calibration_chart(title: str, points: Mapping[str, Sequence[Point]], scale: Scale) -> str:
    """Draw a dot for each job, in one colour for each way of predicting. On the diagonal the prediction was
    exact, above it too low. A red frame marks a job that needed more than its upper bound."""
    every = [number for each in points.values() for point in each for number in (point.value, point.measured)]
    positive = [number for number in every if number > 0]
    if not positive:
        return draw_empty_chart(title, "No job with a prediction has completed.")
    axis = LogarithmicAxis(min(positive) / 2, max(positive) * 2)
    legend = 60 + 6.8 * max(len(printable(label)) for label in points)
    subtitle = "Logarithmic; above the diagonal a job needed more than predicted; red: more than its bound"
    sheet = Sheet(title, subtitle, LEFT + SIDE + legend + RIGHT, TOP + SIDE + BOTTOM)
    _draw_grid(sheet, axis, scale)
    for number, (label, jobs) in enumerate(points.items()):
        style = f'fill="{COLOURS[number % len(COLOURS)]}" fill-opacity="0.6"'
        for point in jobs[:: math.ceil(len(jobs) / MOST_DOTS) or 1]:
            _draw_dot(sheet, axis, point, style, scale)
        x, y = LEFT + SIDE + 20, TOP + 12 + 20 * number
        sheet.rectangle(x, y - 9, 10, 10, style)
        sheet.text(x + 16, y, label)
    return sheet.svg()


def _draw_grid(sheet: Sheet, axis: LogarithmicAxis, scale: Scale) -> None:
    for mark in (mark for mark in scale.marks if axis.first <= mark <= axis.last):
        at = SIDE * axis.at(mark)
        sheet.rule(LEFT + at, TOP, LEFT + at, TOP + SIDE, GRID)
        sheet.rule(LEFT, TOP + SIDE - at, LEFT + SIDE, TOP + SIDE - at, GRID)
        sheet.text(LEFT + at, TOP + SIDE + 18, scale.write(mark), anchor="middle", fill=FAINT)
        sheet.text(LEFT - 8, TOP + SIDE - at + 4, scale.write(mark), anchor="end", fill=FAINT)
    sheet.rule(LEFT, TOP + SIDE, LEFT + SIDE, TOP, INK)
    sheet.text(LEFT + SIDE / 2, TOP + SIDE + 42, "predicted", anchor="middle", fill=FAINT)
    sheet.text(LEFT + 8, TOP + 16, "measured", fill=FAINT)


def _draw_dot(sheet: Sheet, axis: LogarithmicAxis, point: Point, style: str, scale: Scale) -> None:
    if point.value <= 0 or point.measured <= 0:
        return
    x = LEFT + SIDE * axis.at(point.value) - DOT / 2
    y = TOP + SIDE * (1 - axis.at(point.measured)) - DOT / 2
    value, upper, measured = (scale.write(each) for each in point)
    sheet.rectangle(x, y, DOT, DOT, style, f"predicted {value}, at most {upper}; measured {measured}")
    if point.measured > point.upper:
        place = (
            f'x="{pixels(x - 2)}" y="{pixels(y - 2)}" width="{pixels(DOT + 4)}" height="{pixels(DOT + 4)}"'
        )
        sheet.add(f"<rect {place} {BROKEN}/>")
