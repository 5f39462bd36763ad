"""The line chart that compares how long jobs took under each policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpu_flows.analytics.charts.axes import LogarithmicAxis, draw_time_axis
from gpu_flows.analytics.charts.layout import (
    BOTTOM,
    FAINT,
    GRID,
    INK,
    LEFT,
    PLOT_HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
)
from gpu_flows.analytics.charts.sheet import Sheet, draw_empty_chart, pixels, printable, svg_path
from gpu_flows.schedulers.simulation.summary import Floats

POINTS = 300  # of a line: more than a screen can show
# These colours differ for people with any colour vision and on paper. Further lines are dashed.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#57606a")
DASHES = ("", "7 3", "2 3")


def draw_turnaround_chart(turnarounds: Mapping[str, Floats]) -> str:
    """Draw, for each policy, the share of jobs whose turnaround was at most a given time."""
    every = np.concatenate([np.asarray(values, float) for values in turnarounds.values()] or [np.array([])])
    positive = every[every > 0]
    if not len(positive):
        return draw_empty_chart("Turnaround of jobs", "No job finished.")
    first, last = float(positive.min()), float(positive.max())
    axis = LogarithmicAxis(first, max(last, 2 * first))
    lines = {label: _cumulate(np.maximum(np.sort(values), first)) for label, values in turnarounds.items()}
    subtitle = "Share of jobs that took no longer, from submission to end; further left is better"
    return _draw_lines("Turnaround of jobs", subtitle, axis, lines, "turnaround (logarithmic)")


def _cumulate(ascending: Floats) -> list[tuple[float, float]]:
    """Return the points of a staircase from 0 to 1, with a step at each value, or at most POINTS steps."""
    count, reached = len(ascending), 0.0
    points: list[tuple[float, float]] = []
    for index in dict.fromkeys(np.linspace(0, count - 1, min(count, POINTS)).astype(int).tolist()):
        value = float(ascending[index])
        points += [(value, reached), (value, (index + 1) / count)]
        reached = (index + 1) / count
    return points


def _draw_lines(
    title: str,
    subtitle: str,
    axis: LogarithmicAxis,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    axis_name: str,
) -> str:
    """Draw a line for each policy, from 0 to 100 % over the axis, with a legend beside the plot."""
    legend = legend_width(lines)
    width = WIDTH - LEFT - RIGHT - legend
    height = max(PLOT_HEIGHT, 20.0 * len(lines))
    sheet = Sheet(title, subtitle, WIDTH, TOP + height + BOTTOM)
    for percent in range(0, 101, 20):
        y = TOP + height * (1 - percent / 100)
        sheet.rule(LEFT, y, LEFT + width, y, INK if percent == 0 else GRID)
        sheet.text(LEFT - 8, y + 4, f"{percent}%", anchor="end", fill=FAINT)
    draw_time_axis(sheet, axis, width, height, axis_name)
    for number, (label, points) in enumerate(lines.items()):
        places = [(LEFT + width * axis.at(x), TOP + height * (1 - share)) for x, share in points]
        draw_line(sheet, number, label, places, LEFT + width)
    return sheet.svg()


def legend_width(labels: Iterable[str]) -> float:
    return min(300.0, 48 + 6.8 * max((len(printable(label)) for label in labels), default=0))


def draw_line(
    sheet: Sheet, number: int, label: str, points: Sequence[tuple[float, float]], right: float
) -> None:
    """Draw a line through points in pixels, with its name beside the plot, which ends at `right`."""
    style = _line_style(number)
    if points:
        path = svg_path(points)
        sheet.add(f'<path d="{path}" fill="none" stroke-width="1.8" stroke-linejoin="round" {style}/>')
    x, y = right + 20, TOP + 12 + 20 * number
    sheet.add(f'<path d="M{pixels(x)} {pixels(y - 4)}h20" stroke-width="2.5" fill="none" {style}/>')
    sheet.text(x + 26, y, label, fill=INK)


def _line_style(number: int) -> str:
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{COLOURS[number % len(COLOURS)]}"{dashed}'
