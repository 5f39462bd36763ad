"""The chart of how busy the devices were over time: one strip per policy, above a common time axis.

Lines of many policies in one plot would hide each other, because all of them jump between 0 and 100 percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gpu_flows.analytics.charts.axes import LinearAxis, draw_time_axis, format_duration
from gpu_flows.analytics.charts.layout import (
    BINS,
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
from gpu_flows.analytics.charts.sheet import Sheet, draw_empty_chart, printable, svg_path
from gpu_flows.schedulers.simulation.summary import DeviceUse, Floats

STRIP, GAP = 72.0, 18.0  # the height of a strip if there are several, and the space between two
COLOUR, SHADE = "#0072b2", "#cce3f0"


def draw_utilization_chart(uses: Mapping[str, DeviceUse]) -> str:
    """Draw, for each policy, how busy the devices were over time."""
    begin = min((float(use.since.min()) for use in uses.values() if len(use.since)), default=0.0)
    end = max((float(use.until.max()) for use in uses.values() if len(use.until)), default=0.0)
    if end <= begin:
        return draw_empty_chart("Utilization over time", "No job ran.")
    edges = np.linspace(begin, end, BINS + 1)
    subtitle = f"Mean over all devices, in {BINS} intervals of {format_duration(edges[1] - edges[0])} each"
    strip = PLOT_HEIGHT if len(uses) == 1 else STRIP
    height = len(uses) * (strip + GAP) - GAP
    labels = min(300.0, 24 + 6.8 * max(len(printable(label)) for label in uses))
    width = WIDTH - LEFT - RIGHT - labels
    sheet = Sheet("Utilization over time", subtitle, WIDTH, TOP + height + BOTTOM)
    axis = LinearAxis(begin, end)
    draw_time_axis(sheet, axis, width, height, "time")
    for number, (label, use) in enumerate(uses.items()):
        _draw_strip(sheet, TOP + number * (strip + GAP), width, strip, axis, _bin(use, edges))
        sheet.text(LEFT + width + 12, TOP + number * (strip + GAP) + strip / 2 + 4, label, fill=INK)
    return sheet.svg()


def _draw_strip(
    sheet: Sheet, top: float, width: float, height: float, axis: LinearAxis, points: list[tuple[float, float]]
) -> None:
    for percent in (0, 50, 100):
        y = top + height * (1 - percent / 100)
        sheet.rule(LEFT, y, LEFT + width, y, INK if percent == 0 else GRID)
        sheet.text(LEFT - 8, y + 4, f"{percent}%", anchor="end", fill=FAINT)
    if not points:
        return
    places = [(LEFT + width * axis.at(x), top + height * (1 - share)) for x, share in points]
    bottom = top + height
    area = svg_path([(places[0][0], bottom), *places, (places[-1][0], bottom)])
    sheet.add(f'<path d="{area}" fill="{SHADE}"/>')
    line = f'fill="none" stroke="{COLOUR}" stroke-width="1.4" stroke-linejoin="round"'
    sheet.add(f'<path d="{svg_path(places)}" {line}/>')


def _bin(use: DeviceUse, edges: Floats) -> list[tuple[float, float]]:
    """Return the points of a line that is level within each interval, and falls to 0 after the last use."""
    if not len(use.until):
        return []
    shares = use.over_time(edges).tolist()
    last = math.ceil((float(use.until.max()) - edges[0]) / (edges[1] - edges[0]) - 1e-9)
    points: list[tuple[float, float]] = []
    for number in range(max(1, last)):
        points += [(edges[number], shares[number]), (edges[number + 1], shares[number])]
    return [*points, (points[-1][0], 0.0)]
