"""A horizontal bar for each of some names, such as users."""

from __future__ import annotations

from collections.abc import Sequence

from plotly import graph_objects as go

from gpu_flows.analytics.figures.theme import COLOURS, make_figure, name_of

ROW, MARGINS = 30, 96  # heights in pixels


def draw_named_bars(
    names: Sequence[object],
    values: Sequence[float],
    unit: str,
    texts: Sequence[str],
    colour: str = COLOURS[0],
) -> go.Figure:
    """Draw the values, the first on top, with the unit on the axis and a text at each bar."""
    bars = go.Bar(
        orientation="h",
        y=[name_of(name, 28) for name in names],
        x=list(values),
        marker={"color": colour},
        text=list(texts),
        textposition="auto",
        textangle=0,
        hovertemplate="%{y}: %{text}<extra></extra>",
        showlegend=False,
    )
    figure = make_figure([bars], height=MARGINS + ROW * max(len(names), 3))
    figure.update_xaxes(title={"text": unit}, rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure
