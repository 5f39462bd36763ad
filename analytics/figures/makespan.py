"""How close the recorded schedule came to the best that is possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.theme import COLOURS, GREY, Drawing, format_duration, make_figure
from gpu_flows.analytics.query_runner import QueryResult
from gpu_flows.schedulers.model import Device, Job, Node
from gpu_flows.schedulers.simulation.bounds import bounds
from gpu_flows.schedulers.workload import Arrival, allow_spanning

MOST_JOBS = 10_000  # the bounds of more take too long

# The fewest devices of a job's attempts, so that the bound is not above what an elastic job could do. The
# devices stand in the first row.
_JOBS = """
-- Which jobs ended, what did they take, and which devices does the pool have?
with sizes as (select job_id, min(gpus) as gpus from attempt_history where gpus > 0 group by job_id),
cluster as (
    select list(
        (device_id, node, index, coalesce(model, ''), coalesce(memory_mb, 0)) order by node, index
    ) as devices
    from devices where pool = $pool
)
select job_id, epoch(submitted) as submitted_s, epoch(ended) as ended_s, sizes.gpus, run_s,
    coalesce(gpu_memory_mb, 0) as gpu_memory_mb,
    if(row_number() over (order by submitted, job_id) = 1, (from cluster), null) as devices
from job_history join sizes using (job_id)
where pool = $pool and ended > $since and ended <= $until and turnaround_s is not null
order by submitted, job_id
"""


def draw_makespan(jobs: QueryResult) -> Drawing | None:
    """Draw the measured makespan and mean turnaround beside their lower bounds."""
    devices = jobs.rows[0][-1] if jobs.rows else None
    if not devices:
        return None
    limits = bounds(allow_spanning(_arrival(*row[:-1]) for row in jobs.rows), _nodes(devices))
    submitted, ended = ([row[column] for row in jobs.rows] for column in (1, 2))
    makespan = max(ended) - min(submitted)
    mean = sum(end - begin for begin, end in zip(submitted, ended, strict=True)) / len(jobs.rows)
    names = ["makespan", "mean turnaround"]
    measured, bound = [makespan, mean], [limits.makespan_s, limits.mean_turnaround_s]
    bars = [
        _bars("lower bound", names, bound, measured, GREY),
        _bars("measured", names, measured, measured, COLOURS[0]),
    ]
    figure = make_figure(bars, height=280, barmode="group", showlegend=True)
    figure.update_xaxes(title={"text": "part of what was measured"}, tickformat=".0%", range=[0, 1.25])
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    gaps = " and ".join(
        f"{name} {most / least - 1:.1%}"
        for name, most, least in zip(names, measured, bound, strict=True)
        if least
    )
    some = f"the first {MOST_JOBS:,} jobs" if jobs.truncated else f"{len(jobs.rows):,} jobs"
    return Drawing(figure, f"Above the bound: {gaps}; {some}, with their measured times")


def _bars(label: str, names: list[str], values: list[float], wholes: list[float], colour: str) -> Any:
    texts = [format_duration(value) for value in values]
    return go.Bar(
        orientation="h",
        y=names,
        x=[value / whole if whole else 0 for value, whole in zip(values, wholes, strict=True)],
        marker={"color": colour},
        name=label,
        text=texts,
        textposition="auto",
        textangle=0,
        hovertext=[f"{name}, {label}: {text}" for name, text in zip(names, texts, strict=True)],
        hoverinfo="text",
    )


def _arrival(job_id: str, submitted: float, _: float, gpus: int, run_s: float, memory_mb: int) -> Arrival:
    return Arrival(Job(job_id, submitted, gpus, memory_mb=memory_mb), run_s)


def _nodes(devices: Iterable[tuple[Any, ...]]) -> list[Node]:
    by_node: dict[str, list[Device]] = {}
    for device_id, node, index, model, memory_mb in devices:
        by_node.setdefault(node, []).append(Device(device_id, node, index, model, memory_mb))
    return [Node(name, tuple(found)) for name, found in by_node.items()]


CHART = Chart(
    key="makespan",
    title="Distance to the best possible",
    meaning="No schedule of these jobs on these devices can be below the bound; a small gap is good.",
    sql=_JOBS,
    draw=draw_makespan,
    when_empty="No job that held a device has ended in this time.",
    most_rows=MOST_JOBS,
)
