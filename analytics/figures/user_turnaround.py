"""How long the jobs of each user took."""

from __future__ import annotations

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.theme import (
    COLOURS,
    MOST_NAMES,
    Drawing,
    duration_axis,
    make_figure,
    name_of,
)
from gpu_flows.analytics.query_runner import QueryResult

_USERS = f"""
-- How long did the jobs of each user take?
select user_name, count(*) as jobs,
    quantile_cont(turnaround_s, 0.05) as p05_s, quantile_cont(turnaround_s, 0.25) as p25_s,
    quantile_cont(turnaround_s, 0.5) as p50_s, quantile_cont(turnaround_s, 0.75) as p75_s,
    quantile_cont(turnaround_s, 0.95) as p95_s
from job_history
where pool = $pool and ended > $since and ended <= $until and attempts > 0 and turnaround_s is not null
group by user_name
order by jobs desc, user_name
limit {MOST_NAMES}
"""


def draw_turnaround_by_user(found: QueryResult) -> Drawing | None:
    """Draw a box for each user, the one with the most jobs on top."""
    quantiles = [[max(value, 1e-3) for value in row[2:]] for row in found.rows]
    if not quantiles:
        return None
    names = [f"{name_of(row[0] or 'no user', 24)} ({row[1]:,})" for row in found.rows]
    p05, p25, p50, p75, p95 = (list(values) for values in zip(*quantiles, strict=True))
    boxes = go.Box(
        orientation="h",
        y=names,
        lowerfence=p05,
        q1=p25,
        median=p50,
        q3=p75,
        upperfence=p95,
        line={"color": COLOURS[0]},
        showlegend=False,
    )
    figure = make_figure([boxes], height=110 + 34 * max(len(names), 3))
    figure.update_xaxes(**duration_axis("turnaround, logarithmic", min(p05), max(p95)))
    figure.update_yaxes(type="category", autorange="reversed")
    note = f"; the {MOST_NAMES} users with the most jobs" if len(names) == MOST_NAMES else ""
    return Drawing(figure, f"Box: half of the jobs; whiskers: nine in ten; in brackets: jobs{note}")


CHART = Chart(
    key="turnaround-by-user",
    title="Turnaround by user",
    meaning="Users whose boxes lie far to the right wait long for results; similar boxes mean fairness.",
    sql=_USERS,
    draw=draw_turnaround_by_user,
    when_empty="No job that ran has ended in this time.",
)
