"""The figures of simulations: devices over time, turnarounds and utilization, policy by policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from gpu_flows.analytics.figures.chart import Drawn
from gpu_flows.analytics.figures.gantt import Hold, draw_holds
from gpu_flows.analytics.figures.heat import BINS, MOST_ROWS, draw_heat
from gpu_flows.analytics.figures.theme import (
    AXIS,
    COLOURS,
    MOST_MARKS,
    Drawing,
    format_duration,
    make_figure,
    name_of,
)
from gpu_flows.analytics.figures.time_axis import TimeAxis
from gpu_flows.analytics.figures.turnaround import draw_distributions
from gpu_flows.analytics.query_runner import QueryResult
from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.simulation.simulator import Simulation
from gpu_flows.schedulers.simulation.summary import DeviceUse, Floats, device_use

MOST_DEVICES = 128  # of which each is a row with a name
POINTS = 300  # of a distribution: more than a screen can show
STRIP, GAP, MARGINS = 84, 30, 90  # heights in pixels


def gantt_of(policy: str, simulation: Simulation, use: DeviceUse | None = None) -> Drawn:
    """Return which job held which device under a policy."""
    return Drawn.of(
        key="gantt",
        title=f"Devices over time: {policy}",
        meaning="Each row is a device, or several neighbouring ones; what is empty or pale is idle time.",
        drawing=_draw_gantt(simulation, use),
        when_empty="No job ran.",
    )


def _draw_gantt(simulation: Simulation, use: DeviceUse | None) -> Drawing | None:
    devices = all_devices(simulation.nodes)
    names = {device.id: f"{device.node} / {device.index}" for device in devices}
    held = sum(len(attempt.devices) for attempt in simulation.attempts)
    if held > MOST_MARKS or len(devices) > MOST_DEVICES:
        return _draw_shares(list(names.values()), use or device_use(simulation))
    jobs = {result.arrival.job.id: result.arrival.job for result in simulation.jobs}
    holds = [
        Hold(
            names[device.id],
            attempt.job_id,
            jobs[attempt.job_id].name,
            jobs[attempt.job_id].user,
            attempt.number,
            attempt.started,
            attempt.ended,
            attempt.outcome,
        )
        for attempt in simulation.attempts
        for device in attempt.devices
    ]
    return draw_holds(holds, names.values())


def _draw_shares(devices: Sequence[str], use: DeviceUse) -> Drawing | None:
    """Draw which part of neighbouring devices was held over time."""
    if not len(use.since):
        return None
    group = math.ceil(len(devices) / MOST_ROWS)
    edges = np.linspace(float(use.since.min()), float(use.until.max()), BINS + 1)
    rows: list[tuple[str, int, float, float]] = []
    for first in range(0, len(devices), group):
        chosen = (use.device >= first) & (use.device < first + group)
        size = min(group, len(devices) - first)
        since, until = use.since[chosen], use.until[chosen]
        held = DeviceUse(size, use.device[chosen], since, until, np.ones(len(since)))
        shares = held.over_time(edges) if len(since) else np.zeros(BINS)
        rows += [
            (devices[first], size, float(edge), 100 * float(share))
            for edge, share in zip(edges, shares, strict=False)
        ]
    drawing = draw_heat(rows, "held")
    what = f"{group} neighbouring devices" if group > 1 else "the time"
    return drawing and Drawing(
        drawing.figure, f"The stronger, the more of {what} jobs held. {drawing.subtitle}"
    )


def turnaround_of(turnarounds: Mapping[str, Floats]) -> Drawn:
    """Return the distribution of turnarounds under each policy."""
    curves = {policy: _cumulate(np.sort(values)) for policy, values in turnarounds.items()}
    return Drawn.of(
        key="turnaround",
        title="Turnaround of jobs",
        meaning="The share of jobs that took no longer, from submission to end; further left is better.",
        drawing=draw_distributions(curves, {policy: len(values) for policy, values in turnarounds.items()}),
        when_empty="No job finished.",
        data=_summarize(turnarounds),
    )


def _cumulate(ascending: Floats) -> list[tuple[float, float]]:
    """Return (value, percent of values that are not above it), at most POINTS of them."""
    count = len(ascending)
    chosen = dict.fromkeys(np.linspace(0, count - 1, min(count, POINTS)).astype(int).tolist())
    return [(float(ascending[index]), 100 * (index + 1) / count) for index in chosen]


def _summarize(turnarounds: Mapping[str, Floats]) -> QueryResult:
    rows = [
        (policy, len(values), float(values.mean()), *(float(q) for q in np.quantile(values, (0.5, 0.9, 1))))
        for policy, values in turnarounds.items()
        if len(values)
    ]
    return QueryResult(["policy", "jobs", "mean_s", "p50_s", "p90_s", "longest_s"], rows, False)


def utilization_of(uses: Mapping[str, DeviceUse]) -> Drawn:
    """Return how busy all devices were over time, in a strip for each policy above a common time axis: lines
    in one plot would hide each other."""
    return Drawn.of(
        key="utilization",
        title="Utilization over time",
        meaning="The mean of all devices; what is not blue was not used.",
        drawing=_draw_strips(uses),
        when_empty="No job ran.",
    )


def _draw_strips(uses: Mapping[str, DeviceUse]) -> Drawing | None:
    begin = min((float(use.since.min()) for use in uses.values() if len(use.since)), default=0.0)
    end = max((float(use.until.max()) for use in uses.values() if len(use.until)), default=0.0)
    if end <= begin:
        return None
    edges, axis = np.linspace(begin, end, BINS + 1), TimeAxis(begin, end)
    height = MARGINS + (STRIP + GAP) * max(len(uses), 2)
    figure = make_subplots(
        rows=len(uses),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=GAP / (height - MARGINS),
        subplot_titles=[name_of(policy) for policy in uses],
        figure=make_figure([], height),
    )
    for row, (policy, use) in enumerate(uses.items(), start=1):
        shares = 100 * use.over_time(edges) if len(use.since) else np.zeros(BINS)
        figure.add_trace(_strip(axis, edges, shares, policy), row=row, col=1)
    settings = axis.layout()
    title = settings.pop("title", {})
    figure.update_xaxes(**AXIS, **settings)
    figure.update_xaxes(title=title, row=len(uses))
    figure.update_yaxes(**AXIS, range=[0, 101], ticksuffix="%", nticks=3)
    figure.update_annotations(x=0, xanchor="left", font={"size": 13})
    figure.update_layout(margin={"t": 28})
    return Drawing(figure, f"Means over {BINS} intervals of {format_duration(edges[1] - edges[0])}")


def _strip(axis: TimeAxis, edges: Floats, shares: Floats, policy: str) -> go.Scatter:
    values = [round(float(share), 1) for share in shares]
    return go.Scatter(
        x=[axis.at(float(edge)) for edge in edges],
        y=[*values, values[-1]],
        mode="lines",
        line={"shape": "hv", "width": 1.4, "color": COLOURS[0]},
        fill="tozeroy",
        name=name_of(policy),
        showlegend=False,
    )
