"""How many jobs waited and ran over time."""

from __future__ import annotations

from dataclasses import replace

from plotly import graph_objects as go

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.theme import COLOURS, Drawing, make_figure
from gpu_flows.analytics.figures.time_axis import TimeAxis, seconds_of
from gpu_flows.analytics.query_runner import QueryResult

BINS = 400  # of the time, each with two points, where there are more changes than can be drawn

_CHANGES = """
-- How many jobs waited and ran, from each change on?
select time, waiting, running from queue_over_time where pool = $pool and time > $since and time <= $until
union all
select $since, max_by(waiting, time), max_by(running, time)
from queue_over_time where pool = $pool and time <= $since having count(*) > 0
order by time
"""
# The most of each interval stands where it begins, and what was left at its last change stands there.
_PEAKS = f"""
-- How many jobs waited and ran at most, in each interval?
with binned as (
    select *, floor({BINS} * seconds($since, time) / greatest(seconds($since, $until), 1e-3)) as bin
    from queue_over_time where pool = $pool and time > $since and time <= $until
)
select min(time) as time, max(waiting) as waiting, max(running) as running from binned group by bin
union
select max(time), max_by(waiting, time), max_by(running, time) from binned group by bin having count(*) > 1
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
    return Drawing(figure)


def _draw_peaks(found: QueryResult) -> Drawing | None:
    drawing = draw_queue(found)
    return drawing and Drawing(drawing.figure, f"The most in each of {BINS} intervals")


_CHART = Chart(
    key="queue",
    title="Waiting and running jobs",
    meaning="A growing orange area means that jobs arrive faster than the devices can serve them.",
    queries=(_CHANGES,),
    draw=draw_queue,
    when_empty="No job was submitted in this time.",
    views=("queue_over_time",),
)
CHART = replace(_CHART, coarse=replace(_CHART, queries=(_PEAKS,), draw=_draw_peaks))
