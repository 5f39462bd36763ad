"""The charts of the SchedTune study: figures of each scheduler by load, with their 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpu_flows.analytics.charts.layout import BOTTOM, FAINT, GRID, INK, LEFT, PLOT_HEIGHT, RIGHT, TOP, WIDTH
from gpu_flows.analytics.charts.line_charts import COLOURS
from gpu_flows.analytics.charts.sheet import Sheet, pixels, svg_path

Point = tuple[float, float, float]  # load, value, half the width of its interval
LEGEND = 190.0
STEP = 10  # percent


def draw_by_load(title: str, subtitle: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """Draw a line for each scheduler over the load, and a rule at every STEP percent."""
    width, height = WIDTH - LEFT - RIGHT - LEGEND, PLOT_HEIGHT
    loads = [load for load, _, _ in next(iter(lines.values()))]
    every = [point for points in lines.values() for point in points]
    low = STEP * math.floor(min(0.0, *(value - half for _, value, half in every)) / STEP)
    high = STEP * math.ceil(max(0.0, *(value + half for _, value, half in every)) / STEP)

    def across(load: float) -> float:
        return LEFT + width * (load - loads[0]) / (loads[-1] - loads[0])

    def down(value: float) -> float:
        return TOP + height * (high - value) / (high - low)

    sheet = Sheet(title, subtitle, WIDTH, TOP + height + BOTTOM)
    for percent in range(low, high + 1, STEP):
        sheet.rule(LEFT, down(percent), LEFT + width, down(percent), INK if percent == 0 else GRID)
        sheet.text(LEFT - 8, down(percent) + 4, f"{percent}%", anchor="end", fill=FAINT)
    for load in loads:
        sheet.text(across(load), TOP + height + 18, f"{load:g}", anchor="middle", fill=FAINT)
    name = "load: work that arrives, relative to what whole devices can do"
    sheet.text(LEFT + width / 2, TOP + height + 36, name, anchor="middle", fill=FAINT)
    for number, (scheduler, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = svg_path((across(load), down(value)) for load, value, _ in points)
        sheet.add(f'<path d="{path}" fill="none" stroke-width="1.8" stroke="{colour}"/>')
        for load, value, half in points:
            sheet.rule(across(load), down(value - half), across(load), down(value + half), colour)
        x, y = LEFT + width + 20, TOP + 12 + 20 * number
        sheet.add(
            f'<path d="M{pixels(x)} {pixels(y - 4)}h20" stroke-width="2.5" fill="none" stroke="{colour}"/>'
        )
        sheet.text(x + 26, y, scheduler, fill=INK)
    return sheet.svg()
