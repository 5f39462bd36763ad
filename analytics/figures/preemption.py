"""What it cost to stop jobs for others."""

from __future__ import annotations

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.theme import COLOURS, Drawing, format_duration, make_figure, name_of
from gpu_flows.analytics.query_runner import QueryResult

_COSTS = """
-- What did it cost to stop jobs?
select coalesce(kind, 'other') as kind, count(*) as stops, avg(stopping_s) as stopping_s,
    avg(restart_s) as restart_s, avg(lost_s) as lost_s, avg(waited_s) as waited_s,
    sum(lost_s * gpus_before) / 3600 as lost_gpu_hours
from preemptions
where pool = $pool and requested > $since and requested <= $until
group by all
order by stops desc, kind
"""
PARTS = (
    ("stopping_s", "saving and stopping", COLOURS[0]),
    ("restart_s", "loading the checkpoint", COLOURS[5]),
    ("lost_s", "work done again", COLOURS[1]),
)


def draw_preemption(found: QueryResult) -> Drawing | None:
    """Draw the mean cost of a stop of each kind, part by part."""
    if not found.rows:
        return None
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    kinds = [f"{name_of(row['kind'])} ({row['stops']:,})" for row in rows]
    bars = [
        go.Bar(
            orientation="h",
            y=kinds,
            x=[row[column] or 0 for row in rows],
            marker={"color": colour},
            name=label,
            hovertext=[f"{label}: {format_duration(row[column] or 0)}" for row in rows],
            hoverinfo="text",
        )
        for column, label, colour in PARTS
    ]
    figure = make_figure(bars, height=130 + 44 * max(len(rows), 2), barmode="stack", showlegend=True)
    figure.update_xaxes(title={"text": "seconds of a job's devices, mean of a stop"}, rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    lost = sum(row["lost_gpu_hours"] or 0 for row in rows)
    return Drawing(figure, f"In brackets: how often; {lost:,.3g} GPU-hours of work had to be done again")


CHART = Chart(
    key="preemption",
    title="What stopping jobs cost",
    meaning="The time of its devices that a job lost when it was stopped for others and continued later.",
    sql=_COSTS,
    draw=draw_preemption,
    when_empty="No job was stopped for others in this time.",
)
