"""The figures of studies: means of several workloads, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go

from gpu_flows.analytics.figures.theme import COLOURS, GREY, Drawing, line_styles, make_figure, name_of

ROW, MARGINS = 20, 110  # heights in pixels
LOOKED_AT = {
    "dally,": COLOURS[0],
    "patient": COLOURS[1],
    "rl": COLOURS[1],
}  # by how a name begins; others are grey

Interval = tuple[float, float]
"""(mean, half of the width of its interval)."""
Point = tuple[float, float, float]
"""(where on the x axis, mean, half of the width of its interval)."""


def draw_groups(groups: Mapping[str, Mapping[str, Interval]], subtitle: str = "") -> Drawing:
    """Draw the interval of each scheduler in each group, on a logarithmic scale."""
    rows = [(group, name, *value) for group, found in groups.items() for name, value in found.items()]
    colours = [_colour_of(name) for _, name, _, _ in rows]
    dots = go.Scatter(
        orientation="h",
        y=[[name_of(group) for group, *_ in rows], [name_of(name) for _, name, *_ in rows]],
        x=[mean for *_, mean, _ in rows],
        mode="markers+text",
        marker={"color": colours, "size": 9, "symbol": "diamond"},
        text=[f"   {mean:,.0f}" for *_, mean, _ in rows],
        textposition="middle right",
        cliponaxis=False,
        error_x={"array": [half for *_, half in rows], "thickness": 1.2, "width": 3, "color": GREY},
        showlegend=False,
    )
    figure = make_figure([dots], height=MARGINS + ROW * len(rows))
    figure.update_xaxes(type="log", dtick="D2", tickformat=",")
    figure.update_yaxes(type="multicategory", autorange="reversed", showgrid=False, showdividers=True)
    figure.update_layout(margin={"r": 70})
    return Drawing(figure, subtitle)


def _colour_of(name: str) -> str:
    return next((colour for beginning, colour in LOOKED_AT.items() if name.startswith(beginning)), GREY)


def draw_lines(lines: Mapping[str, Sequence[Point]], axis: str, subtitle: str = "") -> Drawing:
    """Draw a line of percentages for each scheduler, with an interval at each point."""
    styles = line_styles(lines)
    traces = [
        go.Scatter(
            x=[x for x, _, _ in points],
            y=[value for _, value, _ in points],
            mode="lines+markers",
            line={"width": 2, **styles[name]},
            error_y={"array": [half for *_, half in points], "thickness": 1.2, "width": 3},
            name=name_of(name),
        )
        for name, points in lines.items()
    ]
    figure = make_figure(traces, height=420, showlegend=True)
    figure.update_xaxes(title={"text": axis}, tickvals=[x for x, *_ in next(iter(lines.values()))])
    figure.update_yaxes(ticksuffix="%", zerolinecolor=GREY)
    return Drawing(figure, subtitle)
