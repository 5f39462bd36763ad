"""Devices that were idle although a job waited that would have fitted on them."""

from __future__ import annotations

from plotly import graph_objects as go

from gpu_flows.analytics.figures.bins import cut
from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.theme import COLOURS, Drawing, format_duration, make_figure
from gpu_flows.analytics.figures.time_axis import TimeAxis, seconds_of
from gpu_flows.analytics.query_runner import QueryResult

BINS = 240

_IDLE = f"""
-- How many devices were idle in each interval while a waiting job would have fitted?
with periods as (
    select since, until, idle_devices from fragmentation where pool = $pool and idle_devices > 0
),
{cut("periods", BINS)},
summed as (select bin, sum(idle_devices * within_s) as idle_device_s from pieces group by bin)
select to_timestamp(first_s + bin * bin_s) as time, coalesce(idle_device_s, 0) / bin_s as idle_devices,
    coalesce(idle_device_s, 0) as idle_device_s
from (select unnest(range({BINS})) as bin) left join summed using (bin) cross join clock
where exists (from jobs where pool = $pool)
order by bin
"""


def draw_fragmentation(found: QueryResult) -> Drawing | None:
    """Draw the mean number of such devices in each interval."""
    if len(found.rows) < 2:
        return None
    times = [seconds_of(time) for time, _, _ in found.rows]
    step = times[1] - times[0]
    axis = TimeAxis(times[0], times[-1] + step)
    area = go.Scatter(
        x=[axis.at(time) for time in [*times, times[-1] + step]],
        y=[*(idle for _, idle, _ in found.rows), found.rows[-1][1]],
        mode="lines",
        line={"shape": "hv", "width": 1.5, "color": COLOURS[3]},
        fill="tozeroy",
        hovertemplate="%{x}: %{y:.2f} devices<extra></extra>",
        showlegend=False,
    )
    figure = make_figure([area], height=280)
    figure.update_xaxes(**axis.layout())
    figure.update_yaxes(title={"text": "idle devices"}, rangemode="tozero")
    total = sum(idle_s for _, _, idle_s in found.rows)
    return Drawing(
        figure, f"{total / 3600:,.3g} GPU-hours in all; means over intervals of {format_duration(step)}"
    )


CHART = Chart(
    key="fragmentation",
    title="Idle while jobs waited",
    meaning="Devices that stood idle although a waiting job would have fitted: what a policy gave away.",
    sql=_IDLE,
    draw=draw_fragmentation,
    when_empty="No job was submitted in this time.",
    views=("fragmentation",),
)
