"""The Gantt chart: devices from top to bottom, time from left to right, and the jobs that held them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from zlib import crc32

import numpy as np

from gpu_flows.analytics.charts.axes import LinearAxis, draw_time_axis, format_duration
from gpu_flows.analytics.charts.layout import BINS, BOTTOM, FAINT, INK, LEFT, RIGHT, TOP, WIDTH
from gpu_flows.analytics.charts.sheet import Sheet, draw_empty_chart, pixels, printable
from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.simulation.simulator import Attempt, Simulation
from gpu_flows.schedulers.simulation.summary import DeviceUse, device_use

MOST_DEVICES, MOST_BARS = 128, 3_000  # with more, single bars could not be distinguished
MOST_ROWS = 80
SHADES = ("#eef3f8", "#d6e4f0", "#b5d0e6", "#8ab6d8", "#5c98c7", "#3579b1", "#1a5a94", "#0b3d6b")
JOB_COLOURS = (
    *("#8dd3c7", "#fdb462", "#bebada", "#fb8072", "#80b1d3", "#b3de69"),
    *("#fccde5", "#d9c89e", "#bc80bd", "#9fd8a4", "#ffd92f", "#a6b8d0"),
)


def draw_gantt_chart(policy: str, simulation: Simulation, use: DeviceUse | None = None) -> str:
    """Draw every attempt as a bar, or, if there are too many, how many devices were held as shades."""
    if not simulation.attempts:
        return draw_empty_chart(f"Devices over time: {policy}", "No job ran.")
    ends = max(attempt.ended for attempt in simulation.attempts)
    axis = LinearAxis(min(attempt.started for attempt in simulation.attempts), ends)
    devices = len(all_devices(simulation.nodes))
    bars = sum(len(attempt.devices) for attempt in simulation.attempts)
    if devices <= MOST_DEVICES and bars <= MOST_BARS:
        return _draw_bars(policy, simulation, axis, devices)
    return _draw_shades(policy, simulation, use or device_use(simulation), axis)


def _draw_bars(policy: str, simulation: Simulation, axis: LinearAxis, devices: int) -> str:
    row = min(22.0, max(5.0, 480 / devices))
    subtitle = "Each bar is one attempt of a job; point at it for details"
    stopped = any(attempt.outcome != "completed" for attempt in simulation.attempts)
    subtitle += "; a dark end means that it was stopped" if stopped else ""
    sheet = Sheet(f"Devices over time: {policy}", subtitle, WIDTH, TOP + row * devices + BOTTOM)
    width = WIDTH - LEFT - RIGHT - 20
    draw_time_axis(sheet, axis, width, row * devices, "time")
    _draw_node_names(sheet, simulation, width, row)
    numbers = {device.id: number for number, device in enumerate(all_devices(simulation.nodes))}
    results = {result.arrival.job.id: result for result in simulation.jobs}
    for attempt in simulation.attempts:
        x, until = (LEFT + width * axis.at(time) for time in (attempt.started, attempt.ended))
        job = results[attempt.job_id].arrival.job
        tip = _describe(attempt, job.user)
        for first, count in _find_runs(sorted(numbers[device.id] for device in attempt.devices)):
            y, tall, wide = TOP + row * first, row * count - 1, max(0.6, until - x)
            style = f'fill="{_colour(job.id)}" stroke="#fff" stroke-width="0.5"'
            sheet.rectangle(x, y, wide, tall, style, tip)
            if attempt.outcome != "completed":
                sheet.rule(until - 0.7, y, until - 0.7, y + tall, INK, 1.4)
            if row >= 11 and wide > 6.4 * len(printable(job.id)) + 6:
                sheet.text(x + wide / 2, y + tall / 2 + 3.5, job.id, anchor="middle", fill=INK, size=10)
    return sheet.svg()


def _draw_shades(policy: str, simulation: Simulation, use: DeviceUse, axis: LinearAxis) -> str:
    """Draw rows of neighbouring devices: the darker, the more of them were held."""
    group = math.ceil(use.devices / MOST_ROWS)
    rows = math.ceil(use.devices / group)
    # Whole tenths of a pixel, so that rounding leaves no gaps between the cells.
    row = round(min(12.0, max(4.0, 400 / rows)), 1)
    column = round((WIDTH - LEFT - RIGHT - 120) / BINS, 1)
    width = BINS * column
    subtitle = (
        f"The darker, the more of {group} neighbouring devices were held" if group > 1 else "Dark: held"
    )
    sheet = Sheet(f"Devices over time: {policy}", subtitle, WIDTH, TOP + max(row * rows, 180) + BOTTOM)
    draw_time_axis(sheet, axis, width, row * rows, "time")
    edges = np.linspace(axis.first, axis.last, BINS + 1)
    drawn: list[list[str]] = [[] for _ in SHADES]
    for number in range(rows):
        in_row = use.device // group == number
        size = min(group, use.devices - number * group)
        held = DeviceUse(
            size, use.device[in_row], use.since[in_row], use.until[in_row], np.ones(int(in_row.sum()))
        )
        shares = held.over_time(edges) if in_row.any() else np.zeros(BINS)
        shade = np.ceil(shares * (len(SHADES) - 1) - 1e-6).astype(int)
        cuts = [0, *(np.flatnonzero(np.diff(shade)) + 1).tolist(), BINS]
        for begin, end in pairwise(cuts):
            x, y, wide = LEFT + column * begin, TOP + row * number, column * (end - begin)
            drawn[shade[begin]].append(
                f"M{pixels(x)} {pixels(y)}h{pixels(wide)}v{pixels(row)}h{pixels(-wide)}z"
            )
    for colour, parts in zip(SHADES, drawn, strict=True):
        if parts:
            sheet.add(f'<path d="{"".join(parts)}" fill="{colour}" shape-rendering="crispEdges"/>')
    _draw_node_names(sheet, simulation, width, row / group)
    _draw_scale(sheet, LEFT + width + 24)
    return sheet.svg()


def _draw_scale(sheet: Sheet, x: float) -> None:
    """Draw the legend of the shades."""
    for number, colour in enumerate(reversed(SHADES)):
        sheet.rectangle(x, TOP + 18 * number, 16, 18, f'fill="{colour}"')
    for label, y in (("all held", TOP + 13), ("none", TOP + 18 * len(SHADES) - 5)):
        sheet.text(x + 22, y, label, fill=FAINT)


def _draw_node_names(sheet: Sheet, simulation: Simulation, width: float, row: float) -> None:
    """Write the names of nodes on the left, where there is room."""
    y, free_from = TOP, -math.inf
    for node in simulation.nodes:
        tall = row * len(node.devices)
        if y + tall / 2 - 6 >= free_from and tall:
            name = node.name if len(node.name) <= 9 else f"{node.name[:8]}…"
            sheet.text(LEFT - 8, y + tall / 2 + 4, name, anchor="end", fill=FAINT)
            free_from = y + tall / 2 + 8
        y += tall
        if tall >= 20:
            sheet.rule(LEFT, y - 0.5, LEFT + width, y - 0.5, FAINT, 0.5)


def _find_runs(ascending: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number and the length of each run: (3, 4, 5, 9) gives (3, 3) and (9, 1)."""
    first = 0
    for index in range(1, len(ascending) + 1):
        if index == len(ascending) or ascending[index] != ascending[index - 1] + 1:
            yield ascending[first], index - first
            first = index


def _describe(attempt: Attempt, user: str) -> str:
    took = f"{format_duration(attempt.started)} to {format_duration(attempt.ended)}"
    size = f"{len(attempt.devices)} device{'s' if len(attempt.devices) != 1 else ''}"
    number = f"attempt {attempt.number}, {attempt.outcome}"
    return ", ".join(filter(None, (attempt.job_id, user, size, took, number)))


def _colour(job_id: str) -> str:
    """Return the job's colour, which only depends on its id."""
    return JOB_COLOURS[crc32(job_id.encode("utf-8", "replace")) % len(JOB_COLOURS)]
