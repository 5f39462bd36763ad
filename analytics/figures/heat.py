"""Devices from top to bottom, time from left to right: the axis of devices, and heat maps of a percentage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from plotly import graph_objects as go

from gpu_flows.analytics.figures.theme import SHADES, Drawing, format_duration, make_figure, name_of
from gpu_flows.analytics.figures.time_axis import TimeAxis, seconds_of

MOST_ROWS, BINS = 64, 120  # of a heat map; with more devices, a row is several neighbouring ones
ROW, MARGINS = 22, 110  # heights in pixels
HIGHEST = 700  # of all rows

# The rows of a heat map of the pool's devices.
NUMBERED_DEVICES = f"""numbered as (
    select device_id,
        -- slices of one GPU have its index
        node || ' / ' || index
            || if(count(*) over (partition by node, index) = 1, '', ' ' || right(device_id, 6)) as device,
        row_number() over (order by node, index, device_id) - 1 as position, count(*) over () as devices
    from devices where pool = $pool
),
placed as (select *, position // cast(ceil(devices / {MOST_ROWS}) as bigint) as row from numbered),
rows as (select row, min_by(device, position) as device, count(*) as devices from placed group by row)"""


def draw_heat(rows: Sequence[tuple[Any, ...]], what: str) -> Drawing | None:
    """Draw (device, devices, time, percent). A device without any time is an empty row."""
    times = sorted({seconds_of(row[2]) for row in rows if row[2] is not None})
    if not times:
        return None
    step = min((later - earlier for earlier, later in pairwise(times)), default=1.0)
    axis = TimeAxis(times[0], times[-1] + step)
    columns = round((times[-1] - times[0]) / step) + 1
    percents: dict[str, list[float | None]] = {row[0]: [None] * columns for row in rows}
    for device, _, time, percent in rows:
        if time is not None and percent is not None:
            percents[device][round((seconds_of(time) - times[0]) / step)] = round(percent, 1)
    heat = go.Heatmap(
        x=[axis.at(times[0] + (number + 0.5) * step) for number in range(columns)],
        y=[name_of(device) for device in percents],
        z=list(percents.values()),
        zmin=0,
        zmax=100,
        colorscale=SHADES,
        ygap=1,
        colorbar={"ticksuffix": "%", "thickness": 12, "outlinewidth": 0},
        hovertemplate=f"%{{y}}<br>%{{x}}<br>{what}: %{{z}}%<extra></extra>",
        hoverongaps=False,
    )
    row = max(8, min(ROW, HIGHEST // len(percents)))
    figure = make_figure([heat], height=MARGINS + row * max(len(percents), 6))
    figure.update_xaxes(**axis.layout())
    figure.update_yaxes(**device_axis(list(percents)))
    return Drawing(figure, f"Means over intervals of {format_duration(step)}")


def device_axis(devices: Sequence[str]) -> dict[str, Any]:
    """Return the axis of devices, the first on top."""
    names = [name_of(device) for device in devices]
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": names,
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
    }
