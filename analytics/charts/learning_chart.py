"""The learning curves of trained policies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

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
from gpu_flows.analytics.charts.line_charts import draw_line, legend_width
from gpu_flows.analytics.charts.sheet import Sheet, draw_empty_chart
from gpu_flows.analytics.query_runner import run_query

TITLE = "Learning curves"
MOST_TICKS = 8
_CURVES = """
select training || ', seed ' || seed, step, against_baseline_percent
from learning_curves
where cast($training as varchar) in ('', training) and isfinite(against_baseline_percent)
order by training, seed, step
"""

Curve = Sequence[tuple[float, float]]
"""(step, change of the mean turnaround against the baseline in percent)."""


def draw_learning_chart(curves: Mapping[str, Curve]) -> str:
    """Draw a line for each training. Below 0 the policy is better than the baseline."""
    every = [point for curve in curves.values() for point in curve]
    if not every:
        return draw_empty_chart(TITLE, "No training has recorded a point.")
    steps = list(_ticks(0.0, max(step for step, _ in every)))
    changes = list(_ticks(min(0.0, *(change for _, change in every)), max(0.0, *(c for _, c in every))))
    width, height = WIDTH - LEFT - RIGHT - legend_width(curves), max(PLOT_HEIGHT, 20.0 * len(curves))

    def across(step: float) -> float:
        return LEFT + width * step / steps[-1]

    def down(change: float) -> float:
        return TOP + height * (changes[-1] - change) / (changes[-1] - changes[0])

    subtitle = "Mean turnaround in training against the baseline policy; lower is better"
    sheet = Sheet(TITLE, subtitle, WIDTH, TOP + height + BOTTOM)
    for change in changes:
        sheet.rule(LEFT, down(change), LEFT + width, down(change), GRID if change else INK)
        sheet.text(LEFT - 8, down(change) + 4, f"{change:+g}%" if change else "0%", anchor="end", fill=FAINT)
    for step in steps:
        sheet.text(across(step), TOP + height + 18, f"{step:,.0f}", anchor="middle", fill=FAINT)
    sheet.text(LEFT + width / 2, TOP + height + 42, "decisions learned from", anchor="middle", fill=FAINT)
    for number, (label, curve) in enumerate(curves.items()):
        draw_line(sheet, number, label, [(across(x), down(y)) for x, y in curve], LEFT + width)
    return sheet.svg()


def read_curves(database: Path, training: str = "") -> dict[str, list[tuple[float, float]]]:
    """Return the recorded curves of a training, or of all, by name and seed. Raises QueryError."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for label, step, change in run_query(database, _CURVES, {"training": training}).rows:
        curves.setdefault(label, []).append((step, change))
    return curves


def _ticks(low: float, high: float) -> Iterator[float]:
    """Yield round numbers at equal distances, from `low` or below to `high` or above."""
    high = high if high > low else low + 1.0
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    for number in range(math.floor(low / step), math.ceil(high / step - 1e-9) + 1):
        yield number * step
