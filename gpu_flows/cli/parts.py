"""What the commands share: their options, and how they show things.

Data is never trusted: names and values can hold anything, so every cell is made inert, and rich's
markup is off. JSON goes to stdout alone; remarks go to stderr.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpu_flows.cli.problem import BadInput, inert, inert_lines

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PoolOption = Annotated[str, typer.Option("--pool", envvar="GPU_FLOWS_POOL", help="The work pool.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it, until Ctrl-C.")]
DEFAULT_POOL = "gpu"
EVERY_S = 1.0
UNBOUNDED = 100_000  # columns of what is not a terminal: nothing is cut off in a file or a pipe


def examples(*lines: str, **settings: Any) -> Callable[[F], F]:
    """Gives a command its examples, as its help shows them, and other settings of typer."""

    def keep(function: F) -> F:
        shown = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
        setattr(function, "settings", {"epilog": shown, **settings})  # noqa: B010
        return function

    return keep


def add(app: typer.Typer, name: str, function: Callable[..., None]) -> None:
    """Make the function a command of the app."""
    app.command(name, **getattr(function, "settings", {}))(function)


# -- reading what was typed -------------------------------------------------------------------


def assignments(given: Iterable[str], option: str, parse: Callable[[str], T]) -> dict[str, T]:
    """`k=v` words as a dictionary."""
    found: dict[str, T] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"{option} {word!r} is not of the form NAME=VALUE.")
        found[name.strip()] = parse(value)
    return found


def json_or_text(value: str) -> Any:
    """`3`, `true` and `[1, 2]` are what they look like; anything else is text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


# -- showing ----------------------------------------------------------------------------------


def console() -> Console:
    width = None if sys.stdout.isatty() else UNBOUNDED
    return Console(markup=False, emoji=False, highlight=False, width=width)


def show(drawing: RenderableType) -> None:
    """On stdout; without the blanks that fill up a table's last column when it is not a terminal."""
    where = console()
    if where.is_terminal:
        where.print(drawing)
        return
    with where.capture() as drawn:
        where.print(drawing)
    for line in drawn.get().splitlines():
        print(line.rstrip())


def fits(drawing: RenderableType) -> bool:
    """Whether it can be drawn without squeezing its columns."""
    where = console()
    return where.measure(drawing, options=where.options.update(width=UNBOUNDED)).maximum <= where.width


def remark(text: str) -> None:
    """Something beside the answer; never mixed into what a program reads."""
    print(inert(text), file=sys.stderr)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()) -> Table:
    """Plain columns. Those named in `right` hold numbers; the last one takes what room is left."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        last = number == len(columns) - 1
        drawn.add_column(
            Text(inert(name)), justify="right" if name in right else "left", no_wrap=not last, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(each if isinstance(each, Text) else cell(each) for each in row))
    return drawn


def cell(value: object, style: str = "") -> Text:
    return Text("-" if value is None else inert(value), style=style)


def lines(*pairs: tuple[str, object]) -> Table:
    """`name  value` lines; those without a value are left out. A long message keeps its lines."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            drawn.add_row(Text(inert(name)), Text(inert_lines(value)))
    return drawn


def print_json(value: object, indent: int | None = 2) -> None:
    print(json.dumps(clean(value), indent=indent), flush=True)


def clean(value: object) -> Any:
    """What JSON can hold: not-a-number and infinity become null, unknown kinds their text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): clean(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [clean(each) for each in value]
        case _:
            return str(value)


def present(look: Callable[[], T], draw: Callable[[T], RenderableType], as_json: bool, watch: bool) -> None:
    """Show what `look` finds, once or every second; as JSON one object, or one a line."""
    if not watch:
        found = look()
        print_json(found) if as_json else show(draw(found))
        return
    try:
        if as_json or not sys.stdout.isatty():
            while True:
                found = look()
                print_json(found, indent=None) if as_json else show(draw(found))
                sys.stdout.flush()
                time.sleep(EVERY_S)
        with Live(console=console(), auto_refresh=False, screen=True) as live:
            while True:
                live.update(draw(look()), refresh=True)
                time.sleep(EVERY_S)
    except KeyboardInterrupt:
        pass


def duration(seconds: float) -> str:
    """`42s`, `3m 20s`, `5h 07m`, `2d 04h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02d}h"
