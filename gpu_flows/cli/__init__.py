"""The command line, `gpu-flows`: which commands there are, and how one is found and run.

A command is a function with typer annotations, in a module that is imported when the command is
called and not before: help has to come at once, and Prefect alone takes seconds to import. Its
docstring is its help, and `@examples` of `gpu_flows.cli.parts` adds the examples. A name that
leads to a `typer.Typer` is a group of commands.

Exit codes: 0 done, 1 something failed or was not found, 2 wrong usage or bad input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpu_flows import __version__
from gpu_flows.cli.problem import BAD_INPUT, FAILED, INTERRUPTED, Problem

# Name -> (the one line that `gpu-flows --help` shows, where the command is).
COMMANDS = {
    "demo": ("See it all at work on a simulated cluster.", "gpu_flows.cli.demo:demo"),
    "up": ("Start server, pool, blocks and worker in one go.", "gpu_flows.cli.up:up"),
    "submit": ("Put a job in line: a command, a container, or a deployment.", "gpu_flows.cli.submit:submit"),
    "queue": ("List who waits, and why; also who runs.", "gpu_flows.cli.queue:queue"),
    "why": ("Explain one run: why it waits, where it runs, how it ended.", "gpu_flows.cli.why:why"),
    "cancel": ("Stop runs, whatever they are at.", "gpu_flows.cli.cancel:cancel"),
    "gpus": ("Show every device, and how it does.", "gpu_flows.cli.gpus:gpus"),
    "policies": ("List the policies there are, with their options.", "gpu_flows.cli.policies:policies"),
    "policy": ("Show or change the policy that decides.", "gpu_flows.cli.policy:policy"),
    "simulate": ("Run a workload on a virtual cluster.", "gpu_flows.cli.simulate:simulate"),
    "compare": ("Set policies side by side on the same workload.", "gpu_flows.cli.compare:compare"),
    "sql": ("Ask the warehouse: SQL, or a stored question.", "gpu_flows.cli.sql:sql"),
    "doctor": ("Check everything around, and tell how to fix it.", "gpu_flows.cli.doctor:doctor"),
}


class Commands(TyperGroup):
    """Knows every command by its line of help, and imports only the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (line, _) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else listed, rest


def load(name: str) -> Any:
    """The real command of this name."""
    from gpu_flows.cli import parts

    module, _, attribute = COMMANDS[name][1].partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    parts.add(alone, name, found)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="`gpu-flows COMMAND --help` tells more about a command, with examples.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"gpu-flows {__version__}")
        raise typer.Exit


@app.callback()
def gpu_flows(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Prefect as a GPU cluster scheduler."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a narrow terminal encoding is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="gpu-flows", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Problem as problem:
        print(f"Error: {problem}", file=sys.stderr)
        return problem.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # ours to fix, so with a traceback
            raise
        context = getattr(error, "ctx", None)
        print(f"Error: {error.format_message()}", file=sys.stderr)
        print(f"See `{context.command_path if context else 'gpu-flows'} --help`.", file=sys.stderr)
        return BAD_INPUT
