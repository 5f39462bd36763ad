"""How busy each device was over time, by its samples."""

from __future__ import annotations

from gpu_flows.analytics.figures.chart import Chart
from gpu_flows.analytics.figures.heat import BINS, MOST_ROWS, NUMBERED_DEVICES, draw_heat
from gpu_flows.analytics.figures.theme import Drawing
from gpu_flows.analytics.query_runner import QueryResult

# The samples of a device come at a steady rate, so their plain mean is that over time.
_UTILIZATION = f"""
-- How busy were the devices in each interval?
with {NUMBERED_DEVICES},
sampled as (
    select row, least(cast(floor((epoch(time) - first) / bin_s) as bigint), {BINS - 1}) as bin,
        first, bin_s, avg(utilization) as percent
    from samples join placed using (device_id), clock
    where time >= $since and time <= $until and utilization is not null
    group by all
)
select device, rows.devices, to_timestamp(first + bin * bin_s) as time, percent as utilization_percent
from rows left join sampled using (row)
order by row, bin
"""


def draw_utilization(found: QueryResult) -> Drawing | None:
    """Draw a heat map of the devices' utilization."""
    return draw_heat(found.rows, "utilization")


CHART = Chart(
    key="utilization",
    title="Utilization",
    meaning="The stronger the colour, the busier the device; a device that is held and pale waits for data.",
    queries=(_UTILIZATION,),
    draw=draw_utilization,
    when_empty="No utilization was sampled in this time; simulated pools have no samples.",
    most_rows=MOST_ROWS * BINS,
)
