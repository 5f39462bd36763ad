"""What all figures share: colours, fonts, layout, and names made harmless.

Backgrounds are transparent, and the grey of texts and rules has contrast on white and on black, so a figure
can stand on any page. A page may set the colours of its own theme (see pages/page.js).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from zlib import crc32

from plotly import graph_objects as go

# These colours differ for people with any colour vision. Further lines are dashed.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f63b8", "#7d8590")
DASHES = ("solid", "dash", "dot")
JOB_COLOURS = (
    *("#8dd3c7", "#fdb462", "#bebada", "#fb8072", "#80b1d3", "#b3de69"),
    *("#fccde5", "#d9c89e", "#bc80bd", "#9fd8a4", "#ffd92f", "#a6b8d0"),
)
WARNING = "#d1242f"
INK = "#24292f"  # on the bars of jobs, which are light in every theme
GREY, FAINT = "#7d8590", "rgba(125, 133, 144, 0.25)"
SHADES = [[0.0, "rgba(0, 114, 178, 0.08)"], [1.0, "#0072b2"]]  # from almost nothing, on any background
AXIS = {
    "gridcolor": FAINT,
    "zerolinecolor": FAINT,
    "linecolor": GREY,
    "automargin": True,
    "tickangle": 0,
    "title": {"font": {"size": 13}},
}
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"

MOST_MARKS = 3_000  # of a figure; beyond this, single ones can neither be seen nor drawn quickly
MOST_NAMES = 20  # users, for example, in one figure
LONGEST_NAME = 60

_SHIPPED = ("fifo", "srtf", "tiresias", "sjf", "fair_share", "rl", "patient", "gavel")  # one colour each


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure, and what must be known to read it right: units, what was summed up or left out."""

    figure: go.Figure
    subtitle: str = ""


def make_figure(traces: Sequence[Any], height: int = 340, **layout: Any) -> go.Figure:
    """Return a figure in the common style. `layout` adds to it."""
    above = 36 if layout.get("showlegend") else 12
    figure = go.Figure(
        list(traces),
        {
            "template": "none",
            "height": height,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 13, "color": GREY},
            "margin": {"l": 56, "r": 16, "t": above, "b": 48},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "hoverlabel": {"font": {"family": FONT, "size": 13}, "align": "left"},
            "xaxis": AXIS,
            "yaxis": AXIS,
        },
    )
    return figure.update_layout(**layout)


def name_of(text: object, longest: int = LONGEST_NAME) -> str:
    """Return a name that can only be text: plotly reads tags in texts, and control characters are dropped."""
    shown = printable(text)
    return escape(shown if len(shown) <= longest else f"{shown[: longest - 1]}…", quote=False)


def printable(text: object) -> str:
    """Return the text with a dot for every character that cannot be read, or that turns the text around."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(letter if letter.isprintable() else "·" for letter in shown)


def lines_of(*parts: object) -> str:
    """Return a hover text with a line for each part that is not empty."""
    return "<br>".join(name_of(part) for part in parts if part not in (None, ""))


def job_colour(job_id: str) -> str:
    """Return the job's colour, which depends on nothing but its id."""
    return JOB_COLOURS[crc32(job_id.encode("utf-8", "replace")) % len(JOB_COLOURS)]


def line_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return a style for each name, none of them twice. A policy that ships has its own colour in every
    figure; others, too, unless it is taken."""
    styles = [{"color": colour, "dash": dash} for dash in DASHES for colour in COLOURS]
    chosen: dict[str, dict[str, Any]] = {}
    taken: set[int] = set()
    for name in sorted(names, key=lambda name: (_preferred(name) >= len(COLOURS), name)):
        wanted = _preferred(name) % len(COLOURS)
        number = next(
            (n for n in range(wanted, wanted + len(styles)) if n % len(styles) not in taken), wanted
        )
        taken.add(number % len(styles))
        chosen[name] = styles[number % len(styles)]
    return chosen


def _preferred(name: str) -> int:
    if name in _SHIPPED:
        return _SHIPPED.index(name)
    return len(COLOURS) + crc32(name.encode("utf-8", "replace")) % len(COLOURS)


def format_duration(seconds: float) -> str:
    """Format a duration in at most two units: `0`, `0.1s`, `1m 30s`, `1d 12h`."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 60:
        return f"{seconds:.3g}s" if seconds else "0"
    parts, rest = [], round(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,}{unit}")
    return " ".join(parts[:2])


_MARKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 21_600, 86_400, 604_800, 2_592_000, 8_640_000, 86_400_000)


def duration_axis(title: str, shortest: float, longest: float) -> dict[str, Any]:
    """Return a logarithmic axis of durations, with marks that people use: minutes, hours, days."""
    marks = [mark for mark in _MARKS if shortest / 10 <= mark <= longest * 10]
    return {
        "type": "log",
        "title": {"text": title},
        "tickvals": marks,
        "ticktext": [format_duration(mark) for mark in marks],
    }
