"""How commands print: tables, lists of values, JSON and durations.

Every cell is escaped and rich's markup is off, because names and values come from users. JSON alone goes
to stdout; remarks go to stderr.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpu_flows.cli.escaping import escape, escape_lines
from gpu_flows.common.quantities import format_duration as format_duration

T = TypeVar("T")

REFRESH_S = 1.0
UNBOUNDED = 100_000  # the width where stdout is not a terminal: a file or a pipe gets every column in full


def make_console() -> Console:
    width = None if sys.stdout.isatty() else UNBOUNDED
    return Console(markup=False, emoji=False, highlight=False, width=width)


def show(drawing: RenderableType) -> None:
    """Print on stdout. Outside a terminal, the blanks that pad a table's last column are removed."""
    console = make_console()
    if console.is_terminal:
        console.print(drawing)
        return
    with console.capture() as captured:
        console.print(drawing)
    for line in captured.get().splitlines():
        print(line.rstrip())


def fits(drawing: RenderableType) -> bool:
    """Whether the terminal is wide enough for the drawing."""
    console = make_console()
    return console.measure(drawing, options=console.options.update(width=UNBOUNDED)).maximum <= console.width


def print_remark(text: str) -> None:
    """Print a line on stderr, so that it never mixes with output that a program reads."""
    print(escape(text), file=sys.stderr)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()) -> Table:
    """A table of plain columns. Those named in `right` are aligned right; only the last one wraps."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        last = number == len(columns) - 1
        table.add_column(
            Text(escape(name)),
            justify="right" if name in right else "left",
            no_wrap=not last,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(value if isinstance(value, Text) else make_cell(value) for value in row))
    return table


def make_cell(value: object, style: str = "") -> Text:
    return Text("-" if value is None else escape(value), style=style)


def make_value_list(*pairs: tuple[str, object]) -> Table:
    """A `name  value` line for each pair that has a value. A value of several lines keeps them."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            table.add_row(Text(escape(name)), Text(escape_lines(value)))
    return table


def print_json(value: object, indent: int | None = 2) -> None:
    print(json.dumps(to_json_value(value), indent=indent), flush=True)


def to_json_value(value: object) -> Any:
    """Convert to what JSON can hold: NaN and infinity become null, other types their text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): to_json_value(member) for key, member in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json_value(member) for member in value]
        case _:
            return str(value)


def show_or_watch(
    read: Callable[[], T], draw: Callable[[T], RenderableType], as_json: bool, watch: bool
) -> None:
    """Show what `read` returns: once, or every second until Ctrl-C. Watched JSON is one object a line."""
    if not watch:
        found = read()
        print_json(found) if as_json else show(draw(found))
        return
    try:
        if as_json or not sys.stdout.isatty():
            while True:
                found = read()
                print_json(found, indent=None) if as_json else show(draw(found))
                sys.stdout.flush()
                time.sleep(REFRESH_S)
        with Live(console=make_console(), auto_refresh=False, screen=True) as live:
            while True:
                live.update(draw(read()), refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        pass
