"""The charts of the studies: a figure of each scheduler on each workload, with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpu_flows.analytics.charts.layout import BOTTOM, FAINT, GRID, INK, LEFT, TOP, WIDTH
from gpu_flows.analytics.charts.line_charts import COLOURS
from gpu_flows.analytics.charts.sheet import Sheet, pixels

ROW, GAP, NAMES, FIGURES = 16.0, 14.0, 170.0, 90.0
FAMILIES = {"dally,": COLOURS[0], "patient": COLOURS[1], "rl": COLOURS[1]}  # others are grey


def draw_figures(title: str, subtitle: str, groups: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """Draw (mean, half of its interval) of each scheduler in each group, on a logarithmic scale."""
    left, width = LEFT + NAMES, WIDTH - LEFT - NAMES - FIGURES
    ends = [mean + half for rows in groups.values() for mean, half in rows.values()]
    means = [mean for rows in groups.values() for mean, _ in rows.values()]
    ticks = [
        step * 10**power
        for power in range(math.floor(math.log10(min(means))), math.ceil(math.log10(max(ends))))
        for step in (1, 2, 5)
    ]
    low = max([tick for tick in ticks if tick <= min(means)], default=ticks[0])
    span = math.log(max(ends) / low)
    height = sum((len(rows) + 1) * ROW + GAP for rows in groups.values())

    def across(value: float) -> float:
        return left + width * math.log(max(value, low) / low) / span

    sheet = Sheet(title, subtitle, WIDTH, TOP + height + BOTTOM)
    for tick in ticks:
        if low <= tick <= max(ends) and (span < math.log(50) or math.log10(tick) % 1 == 0):
            sheet.rule(across(tick), TOP, across(tick), TOP + height, GRID)
            sheet.text(across(tick), TOP + height + 18, f"{tick:,}", anchor="middle", fill=FAINT)
    y = float(TOP)
    for name, rows in groups.items():
        sheet.text(LEFT, y + 12, name, fill=INK)
        y += ROW
        for scheduler, (mean, half) in rows.items():
            colour = next((FAMILIES[each] for each in FAMILIES if scheduler.startswith(each)), FAINT)
            sheet.rule(across(mean - half), y + 8, across(mean + half), y + 8, colour)
            mark = f"M{pixels(across(mean) - 3)} {pixels(y + 8)}h6"
            sheet.add(f'<path d="{mark}" stroke-width="9" stroke="{colour}" fill="none"/>')
            sheet.text(left - 8, y + 12, scheduler, anchor="end", fill=FAINT)
            sheet.text(across(mean + half) + 6, y + 12, f"{mean:,.0f}", fill=FAINT)
            y += ROW
        y += GAP
    return sheet.svg()
