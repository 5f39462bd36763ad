"""A horizontal bar for each of some names, such as users."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plotly import graph_objects as go

from gpu_flows.analytics.figures.theme import MOST_NAMES, Drawing, make_figure, name_of

ROW, MARGINS = 30, 96  # heights in pixels


def draw_named_bars(
    rows: Sequence[tuple[str, float]],
    unit: str,
    describe: Callable[[float, float], str],
    colour: str,
    remark: str = "",
) -> Drawing | None:
    """Draw (name, value), the first on top. Of more than MOST_NAMES, the last bar is the sum of the others.
    `describe` returns the text at a bar, from its value and the sum of all."""
    total = sum(value for _, value in rows)
    if not total:
        return None
    shown, others = list(rows[:MOST_NAMES]), rows[MOST_NAMES:]
    if others:
        shown.append((f"{len(others):,} others", sum(value for _, value in others)))
    bars = go.Bar(
        orientation="h",
        y=[name_of(name, 28) for name, _ in shown],
        x=[value for _, value in shown],
        marker={"color": colour},
        text=[describe(value, total) for _, value in shown],
        textposition="auto",
        textangle=0,
        hovertemplate="%{y}: %{text}<extra></extra>",
        showlegend=False,
    )
    figure = make_figure([bars], height=MARGINS + ROW * max(len(shown), 3))
    figure.update_xaxes(title={"text": unit}, rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return Drawing(figure, f"{total:,.4g} {unit} in all{remark}")
