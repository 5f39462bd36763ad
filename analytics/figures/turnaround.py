"""How long jobs took from submission to end, under each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.theme import (
    Drawing,
    duration_axis,
    format_duration,
    line_styles,
    make_figure,
    name_of,
)
from gpu_flows.analytics.query_runner import QueryResult

MOST_POLICIES = 12
QUANTILES = 100

_TURNAROUNDS = f"""
-- How are turnarounds distributed under each policy?
with ended as (
    select coalesce(nullif(job_history.policy, ''), 'no policy') as policy, turnaround_s,
        count(*) over (partition by job_history.policy) as jobs
    from job_history
    where pool = $pool and ended > $since and ended <= $until and attempts > 0 and turnaround_s is not null
),
ranked as (select policy from ended group by policy order by count(*) desc, policy limit {MOST_POLICIES})
select policy, any_value(jobs) as jobs, unnest(range({QUANTILES} + 1)) as percent,
    unnest(quantile_cont(turnaround_s, [x / {QUANTILES} for x in range({QUANTILES} + 1)])) as turnaround_s
from ended semi join ranked using (policy)
group by policy
order by jobs desc, policy, percent
"""


def draw_turnaround_by_policy(found: QueryResult) -> Drawing | None:
    """Draw the distribution of each policy, from the percentiles of its turnarounds."""
    curves: dict[str, list[tuple[float, float]]] = {}
    jobs: dict[str, int] = {}
    for policy, count, percent, turnaround in found.rows:
        curves.setdefault(policy, []).append((turnaround, percent))
        jobs[policy] = count
    return draw_distributions(curves, jobs)


def draw_distributions(
    curves: Mapping[str, Sequence[tuple[float, float]]], jobs: Mapping[str, int]
) -> Drawing | None:
    """Draw (turnaround, percent of jobs that took no longer) of each policy."""
    positive = [turnaround for curve in curves.values() for turnaround, _ in curve if turnaround > 0]
    if not positive:
        return None
    shortest, styles = min(positive), line_styles(curves)
    lines = [
        go.Scatter(
            x=[max(turnaround, shortest) for turnaround, _ in curve],
            y=[percent for _, percent in curve],
            mode="lines",
            line={"shape": "hv", "width": 2, **styles[policy]},
            name=f"{name_of(policy, 28)} ({jobs[policy]:,})",
            hovertext=[f"{percent:g}% within {format_duration(turnaround)}" for turnaround, percent in curve],
            hoverinfo="text+name",
        )
        for policy, curve in curves.items()
    ]
    figure = make_figure(lines, height=380, showlegend=True)
    figure.update_xaxes(**duration_axis("turnaround, logarithmic", shortest, max(positive)))
    figure.update_yaxes(title={"text": "jobs"}, range=[0, 101], ticksuffix="%")
    return Drawing(figure, "In brackets: how many jobs ended under the policy")


CHART = Chart(
    key="turnaround-by-policy",
    title="Turnaround by policy",
    meaning="The share of jobs that took no longer, from submission to end; further left is better.",
    sql=_TURNAROUNDS,
    draw=draw_turnaround_by_policy,
    when_empty="No job that ran has ended in this time.",
)
