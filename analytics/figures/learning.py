"""The learning curves of trained policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Drawn
from gpu_flows.analytics.figures.theme import GREY, Drawing, line_styles, make_figure, name_of
from gpu_flows.analytics.query_runner import run_query

_CURVES = """
select training || ', seed ' || seed, step, against_baseline_percent
from learning_curves
where cast($training as varchar) in ('', training) and isfinite(against_baseline_percent)
order by training, seed, step
"""

Curve = Sequence[tuple[float, float]]
"""(step, change of the mean turnaround against the baseline in percent)."""


def learning_of(curves: Mapping[str, Curve]) -> Drawn:
    """Return a figure with a line for each training."""
    return Drawn.of(
        key="learning",
        title="Learning curves",
        meaning="Mean turnaround in training against the baseline policy; below 0 the policy is better.",
        drawing=draw_learning(curves),
        when_empty="No training has recorded a point.",
    )


def draw_learning(curves: Mapping[str, Curve]) -> Drawing | None:
    """Draw a line for each training."""
    styles = line_styles(curves)
    lines = [
        go.Scatter(
            x=[step for step, _ in curve],
            y=[change for _, change in curve],
            mode="lines+markers" if len(curve) < 20 else "lines",
            line={"width": 2, **styles[label]},
            name=name_of(label),
        )
        for label, curve in curves.items()
        if curve
    ]
    if not lines:
        return None
    figure = make_figure(lines, height=400, showlegend=True)
    figure.add_hline(0, line={"color": GREY, "width": 1})
    figure.update_xaxes(title={"text": "decisions learned from"}, rangemode="tozero", tickformat=",d")
    figure.update_yaxes(ticksuffix="%", tickformat="+g")
    return Drawing(figure)


def read_curves(database: Path, training: str = "") -> dict[str, list[tuple[float, float]]]:
    """Return the recorded curves of a training, or of all, by name and seed. Raises QueryError."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for label, step, change in run_query(database, _CURVES, {"training": training}).rows:
        curves.setdefault(label, []).append((step, change))
    return curves
