"""Charts of simulations as SVG: how long jobs took, how busy devices were, who had which device.

Each is one small file without scripts, fonts or links, drawn with nothing but strings. Whatever a
job or a policy is called is only ever text in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from zlib import crc32

import numpy as np

from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.simulation.simulator import Attempt, Simulation
from gpu_flows.schedulers.simulation.summary import DeviceUse, Floats, device_use

WIDTH, PLOT_HEIGHT = 900.0, 320.0
LEFT, TOP, RIGHT, BOTTOM = 72.0, 64.0, 24.0, 56.0
POINTS = 300  # of a line: more than a screen can show
BINS = 240  # of time
INK, FAINT, GRID = "#24292f", "#6e7781", "#e4e8ec"
# Told apart by people with any colour vision, on paper too; when they run out, dashes tell the rest.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#57606a")
DASHES = ("", "7 3", "2 3")


def turnaround_cdf(turnarounds: Mapping[str, Floats]) -> str:
    """Which share of the jobs was through after so long, for each policy."""
    every = np.concatenate([np.asarray(each, float) for each in turnarounds.values()] or [np.array([])])
    positive = every[every > 0]
    if not len(positive):
        return _empty("Turnaround of jobs", "No job finished.")
    first, last = float(positive.min()), float(positive.max())
    axis = _Logarithmic(first, max(last, 2 * first))
    lines = {label: _climb(np.maximum(np.sort(values), first)) for label, values in turnarounds.items()}
    what = "Share of jobs that took no longer, from submission to end; further left is better"
    return _lines("Turnaround of jobs", what, axis, lines, "turnaround (logarithmic)")


def _climb(ascending: Floats) -> list[tuple[float, float]]:
    """Steps up from 0 to 1, one at each value; fewer and higher ones, if they are many."""
    count, reached = len(ascending), 0.0
    points: list[tuple[float, float]] = []
    for index in dict.fromkeys(np.linspace(0, count - 1, min(count, POINTS)).astype(int).tolist()):
        value = float(ascending[index])
        points += [(value, reached), (value, (index + 1) / count)]
        reached = (index + 1) / count
    return points


def utilization(uses: Mapping[str, DeviceUse]) -> str:
    """How busy the devices were in the course of time, for each policy."""
    begin = min((float(use.since.min()) for use in uses.values() if len(use.since)), default=0.0)
    end = max((float(use.until.max()) for use in uses.values() if len(use.until)), default=0.0)
    if end <= begin:
        return _empty("Utilization over time", "No job ran.")
    edges = np.linspace(begin, end, BINS + 1)
    lines = {}
    for label, use in uses.items():
        points: list[tuple[float, float]] = []
        if len(use.until):
            shares = use.over_time(edges).tolist()
            last = math.ceil((float(use.until.max()) - begin) / (edges[1] - edges[0]) - 1e-9)
            for number in range(max(1, last)):
                points += [(edges[number], shares[number]), (edges[number + 1], shares[number])]
            points.append((points[-1][0], 0.0))
        lines[label] = points
    what = f"Mean over all devices, in {BINS} stretches of {_duration(edges[1] - edges[0])} each"
    return _lines("Utilization over time", what, _Linear(begin, end), lines, "time")


# -- axes -------------------------------------------------------------------------------------

_STEPS = (
    *(base * 10.0**power for power in range(-6, 0) for base in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
_MARKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 21_600, 86_400, 604_800, 2_592_000, 8_640_000, 86_400_000)


@dataclass(frozen=True, slots=True)
class _Linear:
    first: float
    last: float

    def at(self, value: float) -> float:
        """From 0 at the left end to 1 at the right."""
        return (value - self.first) / ((self.last - self.first) or 1.0)

    def ticks(self) -> Iterator[tuple[float, str]]:
        span = self.last - self.first
        step = next((step for step in _STEPS if span / step <= 9), _STEPS[-1])
        for number in range(math.ceil(self.first / step), math.floor(self.last / step + 1e-9) + 1):
            yield number * step, _duration(number * step)


@dataclass(frozen=True, slots=True)
class _Logarithmic:
    first: float
    last: float

    def at(self, value: float) -> float:
        return math.log(value / self.first) / math.log(self.last / self.first)

    def ticks(self) -> Iterator[tuple[float, str]]:
        for mark in _MARKS:
            if self.first <= mark <= self.last:
                yield mark, _duration(mark)


def _duration(seconds: float) -> str:
    """The shortest way to say it: `0`, `0.1s`, `90s` as `1m 30s`, `36h` as `1d 12h`."""
    if seconds < 60:
        return f"{seconds:.3g}s" if seconds else "0"
    parts, rest = [], round(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,}{unit}")
    return " ".join(parts[:2])


# -- lines ------------------------------------------------------------------------------------


def _lines(
    title: str,
    subtitle: str,
    axis: _Linear | _Logarithmic,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    across: str,
) -> str:
    """Shares from 0 to 100% over an axis, a line for each policy, with a legend beside them."""
    legend = min(300.0, 48 + 6.8 * max((len(_plain(label)) for label in lines), default=0))
    width = WIDTH - LEFT - RIGHT - legend
    height = max(PLOT_HEIGHT, 20.0 * len(lines))
    sheet = _Sheet(title, subtitle, WIDTH, TOP + height + BOTTOM)
    for percent in range(0, 101, 20):
        y = TOP + height * (1 - percent / 100)
        sheet.rule(LEFT, y, LEFT + width, y, INK if percent == 0 else GRID)
        sheet.text(LEFT - 8, y + 4, f"{percent}%", anchor="end", fill=FAINT)
    _time_axis(sheet, axis, width, height, across)
    for number, (label, points) in enumerate(lines.items()):
        style = _style(number)
        spots = [(LEFT + width * axis.at(x), TOP + height * (1 - share)) for x, share in points]
        if spots:
            sheet.add(
                f'<path d="{_path(spots)}" fill="none" stroke-width="1.8" stroke-linejoin="round" {style}/>'
            )
        x, y = LEFT + width + 20, TOP + 12 + 20 * number
        sheet.add(f'<path d="M{_n(x)} {_n(y - 4)}h20" stroke-width="2.5" fill="none" {style}/>')
        sheet.text(x + 26, y, label, fill=INK)
    return sheet.svg()


def _time_axis(sheet: _Sheet, axis: _Linear | _Logarithmic, width: float, height: float, across: str) -> None:
    free_from = -math.inf
    for value, words in axis.ticks():
        x = LEFT + width * axis.at(value)
        sheet.rule(x, TOP, x, TOP + height, GRID)
        if x - 3.4 * len(words) >= free_from:
            sheet.text(x, TOP + height + 18, words, anchor="middle", fill=FAINT)
            free_from = x + 3.4 * len(words) + 8
    sheet.text(LEFT + width / 2, TOP + height + 42, across, anchor="middle", fill=FAINT)


def _style(number: int) -> str:
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{COLOURS[number % len(COLOURS)]}"{dashed}'


def _path(spots: Iterable[tuple[float, float]]) -> str:
    """Through all spots, without those that no eye could tell from the one before."""
    drawn: list[str] = []
    for x, y in spots:
        spot = f"{_n(x)} {_n(y)}"
        if not drawn or drawn[-1] != spot:
            drawn.append(spot)
    return "M" + "L".join(drawn)


# -- who had which device ---------------------------------------------------------------------

MOST_DEVICES, MOST_BARS = 128, 3_000  # beyond that nobody could tell one bar from the next
MOST_ROWS = 80
SHADES = ("#eef3f8", "#d6e4f0", "#b5d0e6", "#8ab6d8", "#5c98c7", "#3579b1", "#1a5a94", "#0b3d6b")
SOFT = (
    *("#8dd3c7", "#fdb462", "#bebada", "#fb8072", "#80b1d3", "#b3de69"),
    *("#fccde5", "#d9c89e", "#bc80bd", "#9fd8a4", "#ffd92f", "#a6b8d0"),
)


def gantt(policy: str, simulation: Simulation, use: DeviceUse | None = None) -> str:
    """Devices downwards, time across: every attempt as a bar, or for many of them how full it was."""
    if not simulation.attempts:
        return _empty(f"Devices over time: {policy}", "No job ran.")
    ends = max(attempt.ended for attempt in simulation.attempts)
    axis = _Linear(min(attempt.started for attempt in simulation.attempts), ends)
    devices = len(all_devices(simulation.nodes))
    bars = sum(len(attempt.devices) for attempt in simulation.attempts)
    if devices <= MOST_DEVICES and bars <= MOST_BARS:
        return _bars(policy, simulation, axis, devices)
    return _shades(policy, simulation, use or device_use(simulation), axis)


def _bars(policy: str, simulation: Simulation, axis: _Linear, devices: int) -> str:
    row = min(22.0, max(5.0, 480 / devices))
    what = "Each bar is one attempt of a job; point at it for details"
    stopped = any(attempt.outcome != "completed" for attempt in simulation.attempts)
    what += "; a dark end means that it was stopped" if stopped else ""
    sheet = _Sheet(f"Devices over time: {policy}", what, WIDTH, TOP + row * devices + BOTTOM)
    width = WIDTH - LEFT - RIGHT - 20
    _time_axis(sheet, axis, width, row * devices, "time")
    _node_names(sheet, simulation, width, row)
    numbers = {device.id: number for number, device in enumerate(all_devices(simulation.nodes))}
    results = {result.arrival.job.id: result for result in simulation.jobs}
    for attempt in simulation.attempts:
        x, until = (LEFT + width * axis.at(time) for time in (attempt.started, attempt.ended))
        job = results[attempt.job_id].arrival.job
        tip = _tip(attempt, job.user)
        for first, count in _runs(sorted(numbers[device.id] for device in attempt.devices)):
            y, tall, wide = TOP + row * first, row * count - 1, max(0.6, until - x)
            sheet.add(
                f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(tall)}" '
                f'fill="{_soft(job.id)}" stroke="#fff" stroke-width="0.5"><title>{_safe(tip)}</title></rect>'
            )
            if attempt.outcome != "completed":
                sheet.rule(until - 0.7, y, until - 0.7, y + tall, INK, 1.4)
            if row >= 11 and wide > 6.4 * len(_plain(job.id)) + 6:
                sheet.text(x + wide / 2, y + tall / 2 + 3.5, job.id, anchor="middle", fill=INK, size=10)
    return sheet.svg()


def _shades(policy: str, simulation: Simulation, use: DeviceUse, axis: _Linear) -> str:
    """Rows of neighbouring devices; the darker, the more of them were held."""
    group = math.ceil(use.devices / MOST_ROWS)
    rows = math.ceil(use.devices / group)
    # whole tenths of a pixel, so that rounding leaves no cracks between the cells
    row = round(min(12.0, max(4.0, 400 / rows)), 1)
    column = round((WIDTH - LEFT - RIGHT - 120) / BINS, 1)
    width = BINS * column
    what = f"The darker, the more of {group} neighbouring devices were held" if group > 1 else "Dark: held"
    sheet = _Sheet(f"Devices over time: {policy}", what, WIDTH, TOP + max(row * rows, 180) + BOTTOM)
    _time_axis(sheet, axis, width, row * rows, "time")
    edges = np.linspace(axis.first, axis.last, BINS + 1)
    drawn: list[list[str]] = [[] for _ in SHADES]
    for number in range(rows):
        mine = use.device // group == number
        size = min(group, use.devices - number * group)
        held = DeviceUse(size, use.device[mine], use.since[mine], use.until[mine], np.ones(int(mine.sum())))
        shares = held.over_time(edges) if mine.any() else np.zeros(BINS)
        shade = np.ceil(shares * (len(SHADES) - 1) - 1e-6).astype(int)
        cuts = [0, *(np.flatnonzero(np.diff(shade)) + 1).tolist(), BINS]
        for begin, end in pairwise(cuts):
            x, y, wide = LEFT + column * begin, TOP + row * number, column * (end - begin)
            drawn[shade[begin]].append(f"M{_n(x)} {_n(y)}h{_n(wide)}v{_n(row)}h{_n(-wide)}z")
    for colour, parts in zip(SHADES, drawn, strict=True):
        if parts:
            sheet.add(f'<path d="{"".join(parts)}" fill="{colour}" shape-rendering="crispEdges"/>')
    _node_names(sheet, simulation, width, row / group)
    _scale(sheet, LEFT + width + 24)
    return sheet.svg()


def _scale(sheet: _Sheet, x: float) -> None:
    """Which shade means what."""
    for number, colour in enumerate(reversed(SHADES)):
        sheet.add(f'<rect x="{_n(x)}" y="{_n(TOP + 18 * number)}" width="16" height="18" fill="{colour}"/>')
    for words, y in (("all held", TOP + 13), ("none", TOP + 18 * len(SHADES) - 5)):
        sheet.text(x + 22, y, words, fill=FAINT)


def _node_names(sheet: _Sheet, simulation: Simulation, width: float, row: float) -> None:
    """Along the left, wherever there is room for a name."""
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


def _runs(ascending: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(3, 4, 5, 9) as 3 numbers from 3 on and 1 from 9 on."""
    first = 0
    for index in range(1, len(ascending) + 1):
        if index == len(ascending) or ascending[index] != ascending[index - 1] + 1:
            yield ascending[first], index - first
            first = index


def _tip(attempt: Attempt, user: str) -> str:
    took = f"{_duration(attempt.started)} to {_duration(attempt.ended)}"
    size = f"{len(attempt.devices)} device{'s' if len(attempt.devices) != 1 else ''}"
    number = f"attempt {attempt.number}, {attempt.outcome}"
    return ", ".join(filter(None, (attempt.job_id, user, size, took, number)))


def _soft(job_id: str) -> str:
    """The job's colour: always the same one, and rarely that of its neighbour."""
    return SOFT[crc32(job_id.encode("utf-8", "replace")) % len(SOFT)]


# -- the paper --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sheet:
    title: str
    subtitle: str
    width: float
    height: float
    marks: list[str] = field(default_factory=list)

    def add(self, mark: str) -> None:
        self.marks.append(mark)

    def rule(self, x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1.0) -> None:
        self.add(
            f'<path d="M{_n(x)} {_n(y)}L{_n(to_x)} {_n(to_y)}" stroke="{colour}" stroke-width="{_n(width)}"/>'
        )

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", fill: str = INK, size: float = 12
    ) -> None:
        self.add(
            f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" fill="{fill}" font-size="{_n(size)}">'
            f"{_safe(words)}</text>"
        )

    def svg(self) -> str:
        width, height = _n(self.width), _n(self.height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" font-family="system-ui, Helvetica, Arial, sans-serif">',
                f"<title>{_safe(self.title)}</title>",
                f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
                f'<text x="{_n(LEFT)}" y="28" font-size="17" font-weight="600" fill="{INK}">'
                f"{_safe(self.title)}</text>",
                f'<text x="{_n(LEFT)}" y="47" font-size="12" fill="{FAINT}">{_safe(self.subtitle)}</text>',
                *self.marks,
                "</svg>\n",
            ]
        )


def _empty(title: str, why: str) -> str:
    return _Sheet(title, why, WIDTH, TOP + BOTTOM).svg()


def _n(number: float) -> str:
    """A tenth of a pixel is fine enough."""
    return f"{number:.1f}".removesuffix(".0")


def _plain(words: str) -> str:
    """What XML cannot hold, and what nobody could read, as a dot."""
    return "".join(letter if letter.isprintable() else "·" for letter in words)


def _safe(words: str) -> str:
    return escape(_plain(words))
