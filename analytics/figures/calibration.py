"""Predictions of memory and time, each beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Drawn
from gpu_flows.analytics.figures.theme import (
    COLOURS,
    GREY,
    WARNING,
    Drawing,
    format_duration,
    make_figure,
    name_of,
)

MOST_DOTS = 1000  # of a colour; beyond this every n-th job is drawn


Point = tuple[float, float, float]
"""Of a job: the predicted value, its upper bound, and what was measured."""


class Scale(NamedTuple):
    """How values are written, and which ones are marked on an axis."""

    write: Callable[[float], str]
    marks: Sequence[float]


def _format_mib(mib: float) -> str:
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


MEMORY = Scale(_format_mib, [4.0**power for power in range(11)])
TIME = Scale(format_duration, [0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400])


def calibration_of(key: str, title: str, points: Mapping[str, Sequence[Point]], scale: Scale) -> Drawn:
    """Return a figure with a dot for each job, in one colour for each way of predicting."""
    return Drawn.of(
        key=key,
        title=title,
        meaning="On the diagonal the prediction was exact; above it, a job needed more than predicted.",
        drawing=draw_calibration(points, scale),
        when_empty="No job with a prediction has completed.",
    )


def draw_calibration(points: Mapping[str, Sequence[Point]], scale: Scale) -> Drawing | None:
    """Draw the measured need of jobs over the predicted one."""
    usable = {how: [job for job in jobs if min(job[0], job[2]) > 0] for how, jobs in points.items()}
    every = [number for jobs in usable.values() for job in jobs for number in (job[0], job[2])]
    if not every:
        return None
    ends = [min(every) / 2, max(every) * 2]
    exact = go.Scatter(
        x=ends, y=ends, mode="lines", line={"color": GREY, "width": 1}, hoverinfo="skip", showlegend=False
    )
    dots = [
        _dots(how, jobs[:: math.ceil(len(jobs) / MOST_DOTS) or 1], COLOURS[number % len(COLOURS)], scale)
        for number, (how, jobs) in enumerate(usable.items())
    ]
    figure = make_figure([exact, *dots], height=520, showlegend=True)
    axis = {
        "type": "log",
        "range": [math.log10(end) for end in ends],
        "tickvals": list(scale.marks),
        "ticktext": [scale.write(mark) for mark in scale.marks],
    }
    figure.update_xaxes(title={"text": "predicted"}, **axis)
    figure.update_yaxes(title={"text": "measured"}, **axis)
    few = any(len(jobs) > MOST_DOTS for jobs in usable.values())
    sampled = f"; of more than {MOST_DOTS:,} jobs every n-th is drawn" if few else ""
    return Drawing(figure, f"Logarithmic; framed red: the job needed more than its upper bound{sampled}")


def _dots(how: str, jobs: Sequence[Point], colour: str, scale: Scale) -> go.Scatter:
    texts = [
        f"predicted {scale.write(value)}, at most {scale.write(upper)}; measured {scale.write(measured)}"
        for value, upper, measured in jobs
    ]
    broken = [measured > upper for _, upper, measured in jobs]
    return go.Scatter(
        x=[value for value, _, _ in jobs],
        y=[measured for *_, measured in jobs],
        mode="markers",
        marker={
            "color": colour,
            "size": 7,
            "opacity": 0.7,
            "line": {"color": WARNING, "width": [2 if each else 0 for each in broken]},
        },
        name=name_of(how),
        hovertext=texts,
        hoverinfo="text",
    )
