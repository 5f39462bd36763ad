"""The figures of studies: means of several workloads, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go

from gpu_flows.analytics.figures.theme import COLOURS, GREY, Drawing, line_styles, make_figure, name_of

ROW, MARGINS = 20, 70  # heights in pixels

Interval = tuple[float, float]
"""(mean, half of the width of its interval)."""
Point = tuple[float, float, float]
"""(where on the x axis, mean, half of the width of its interval)."""


def draw_groups(
    groups: Mapping[str, Mapping[str, Interval]], subtitle: str = "", looked_at: Sequence[str] = ()
) -> Drawing:
    """Draw the interval of each scheduler in each group, on a logarithmic scale. Schedulers are grey, but
    those whose names begin like one of `looked_at`."""
    rows: list[tuple[str, float, float]] = []
    labels: list[str] = []  # of each row; a group begins with its own name
    places: list[int] = []
    for group, found in groups.items():
        labels.append(f"<b>{name_of(group)}</b>")
        for name, (mean, half) in found.items():
            places.append(len(labels))
            labels.append(name_of(name))
            rows.append((name, mean, half))
    dots = go.Scatter(
        x=[mean for _, mean, _ in rows],
        y=places,
        mode="markers",
        marker={"color": [_colour_of(name, looked_at) for name, *_ in rows], "size": 9, "symbol": "diamond"},
        error_x={"array": [half for *_, half in rows], "thickness": 1.2, "width": 3, "color": GREY},
        hovertext=[f"{name_of(name)}: {mean:,.4g} ± {half:,.2g}" for name, mean, half in rows],
        hoverinfo="text",
        showlegend=False,
    )
    means = go.Scatter(
        x=[mean + half for _, mean, half in rows],
        y=places,
        mode="text",
        text=[f"  {mean:,.0f}" for _, mean, _ in rows],
        textposition="middle right",
        textfont={"size": 11},
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    figure = make_figure([dots, means], height=MARGINS + ROW * len(labels))
    figure.update_xaxes(type="log", dtick="D2", tickformat=",")
    axis = {"tickvals": list(range(len(labels))), "ticktext": labels, "range": [len(labels) - 0.5, -0.5]}
    figure.update_yaxes(**axis, showgrid=False, zeroline=False)
    figure.update_layout(margin={"r": 64})
    return Drawing(figure, subtitle)


def _colour_of(name: str, looked_at: Sequence[str]) -> str:
    pairs = zip(looked_at, COLOURS, strict=False)
    return next((colour for beginning, colour in pairs if name.startswith(beginning)), GREY)


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
