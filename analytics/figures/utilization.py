"""How busy each device was over time, by its samples."""

from __future__ import annotations

from gpu_flows.analytics.figures.bins import cut
from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.heat import BINS, MOST_ROWS, NUMBERED_DEVICES, draw_heat
from gpu_flows.analytics.figures.theme import Drawing
from gpu_flows.analytics.query_runner import QueryResult

_UTILIZATION = f"""
-- How busy were the devices in each interval?
with {NUMBERED_DEVICES},
readings as (
    select row, since, until, utilization, measured_s / nullif(seconds(since, until), 0) as measured
    from device_readings join placed using (device_id)
    where utilization is not null
),
{cut("readings", BINS)}
select device, rows.devices, time, mean_over_time(utilization, within_s * measured) as utilization_percent
from rows left join pieces using (row)
group by row, device, rows.devices, time
order by row, time
"""


def draw_utilization(found: QueryResult) -> Drawing | None:
    """Draw a heat map of the devices' utilization."""
    return draw_heat(found.rows, "utilization")


CHART = Chart(
    key="utilization",
    title="Utilization",
    meaning="The stronger the colour, the busier the device; a device that is held and pale waits for data.",
    sql=_UTILIZATION,
    draw=draw_utilization,
    when_empty="No utilization was sampled in this time; simulated pools have no samples.",
    most_rows=MOST_ROWS * BINS,
)
