"""Options that several commands share, examples in a command's help, and the parsing of NAME=VALUE."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from gpu_flows.cli.errors import BadInput
from gpu_flows.common.quantities import parse_duration

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PoolOption = Annotated[str, typer.Option("--pool", envvar="GPU_FLOWS_POOL", help="The work pool.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")]
DatabaseOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The DuckDB file; default: the pool's own.")
]
DEFAULT_POOL = "gpu"


def examples(*lines: str, **settings: Any) -> Callable[[F], F]:
    """Decorate a command with the examples that its help shows, and with other settings of typer."""

    def decorate(function: F) -> F:
        epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
        setattr(function, "settings", {"epilog": epilog, **settings})  # noqa: B010
        return function

    return decorate


def quantity_option(metavar: str, help: str, parse: Callable[[str], float], default: str = "") -> Any:
    """An option whose value is written with a unit; the help shows its default as written here."""

    def read(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from None

    return typer.Option(metavar=metavar, help=help, parser=read, show_default=default or True)


def duration_option(help: str, default: str = "") -> Any:
    text = f"{help} As 90s, 30m or 1h30m; a bare number is seconds."
    return quantity_option("TIME", text, parse_duration, default)


def add_command(app: typer.Typer, name: str, function: Callable[..., None]) -> None:
    """Make the function a command of the app, with the settings that `examples` stored."""
    app.command(name, **getattr(function, "settings", {}))(function)


def accepts(model: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `command(values, ...)` into a command with one option for each field of a dataclass.

    The fields carry typer annotations. `values` is an instance of the dataclass. A `typer.Context` may
    follow it as a parameter of the command.
    """
    hints = get_type_hints(model, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    empty = inspect.Parameter.empty
    options = [
        inspect.Parameter(
            field.name,
            keyword,
            annotation=hints[field.name],
            default=empty if field.default is MISSING else field.default,
        )
        for field in fields(model)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        def run(**values: Any) -> None:
            command(model(**{option.name: values.pop(option.name) for option in options}), **values)

        parameters = [*options, *(parameter.replace(kind=keyword) for parameter in own)]
        setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010
        run.__doc__ = command.__doc__
        return run

    return decorate


def parse_assignments(given: Iterable[str], option: str, parse: Callable[[str], T]) -> dict[str, T]:
    """Parse `NAME=VALUE` arguments into a dictionary. `option` names them in the error message."""
    found: dict[str, T] = {}
    for assignment in given:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"{option} {assignment!r} is not of the form NAME=VALUE.")
        found[name.strip()] = parse(value)
    return found


def parse_json_or_text(value: str) -> Any:
    """Parse `3`, `true` and `[1, 2]` as JSON. Any other value is text."""
    try:
        return json.loads(value)
    except ValueError:
        return value
