"""How many jobs waited and ran over time."""

from __future__ import annotations

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.theme import COLOURS, MOST_MARKS, Drawing, make_figure
from gpu_flows.analytics.figures.time_axis import TimeAxis, seconds_of
from gpu_flows.analytics.query_runner import QueryResult

BINS = 400  # of the time, where there are more changes than can be drawn

# Of an interval, the most stands where it begins, and what its last change left stands there.
_QUEUE = f"""
-- How many jobs waited and ran, from each of these times on?
with known as materialized (
    select time, waiting, running from queue_over_time where pool = $pool and time <= $until
),
changes as (
    select *, count(*) over () as changes,
        floor({BINS} * seconds($since, time) / greatest(seconds($since, $until), 1e-3)) as bin
    from known where time > $since
)
select $since as time, max_by(waiting, time) as waiting, max_by(running, time) as running, 0 as changes
from known where time <= $since having count(*) > 0
union all
select time, waiting, running, changes from changes where changes <= {MOST_MARKS}
union all
select min(time), max(waiting), max(running), max(changes)
from changes where changes > {MOST_MARKS} group by bin
union all
select max(time), max_by(waiting, time), max_by(running, time), max(changes)
from changes where changes > {MOST_MARKS} group by bin having count(*) > 1
order by time
"""


def draw_queue(found: QueryResult) -> Drawing | None:
    """Draw a stair for the waiting jobs and one for the running jobs."""
    if not found.rows:
        return None
    times = [seconds_of(time) for time, *_ in found.rows]
    axis = TimeAxis(times[0], times[-1])
    lines = [
        go.Scatter(
            x=[axis.at(time) for time in times],
            y=[row[column] for row in found.rows],
            mode="lines",
            line={"shape": "hv", "width": 2, "color": colour},
            fill="tozeroy" if column == 1 else "none",
            name=name,
        )
        for column, name, colour in ((1, "waiting", COLOURS[1]), (2, "running", COLOURS[0]))
    ]
    figure = make_figure(lines, hovermode="x unified", showlegend=True)
    figure.update_xaxes(**axis.layout())
    figure.update_yaxes(title={"text": "jobs"}, rangemode="tozero", tickformat=",d")
    changes = max(row[3] for row in found.rows)
    summed_up = f"The most in each of {BINS} intervals, of {changes:,} changes"
    return Drawing(figure, summed_up if changes > MOST_MARKS else "")


CHART = Chart(
    key="queue",
    title="Waiting and running jobs",
    meaning="A growing orange area means that jobs arrive faster than the devices can serve them.",
    sql=_QUEUE,
    draw=draw_queue,
    when_empty="No job was submitted in this time.",
    views=("queue_over_time",),
)
