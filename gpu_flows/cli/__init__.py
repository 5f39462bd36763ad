"""The command line, `gpu-flows`: the list of commands, and how one is found and run.

Here belong the commands and what only they need: their options, their output, their error messages, and
a small client of the Prefect API. Anything that a worker or a flow needs too belongs in another package.

A command is a module with a function of the same name: `queue` is `queue` in `jobs/queue.py`. To add one:

1. Write the function with typer annotations. Its docstring is its help, and `@examples` from
   `gpu_flows.cli.options` adds the examples. A `typer.Typer` in place of the function is a group of
   subcommands (see `policy.py`).
2. Add its name, its line of help and its package to `_COMMANDS_BY_PACKAGE` below.

A command's module is imported only when the command is called. This keeps `gpu-flows --help` fast, since
Prefect alone takes seconds to import. For the same reason this module imports nothing heavy.

Exit codes: 0 success, 1 something failed or was not found, 2 wrong usage or bad input.
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
from gpu_flows.cli.errors import BAD_INPUT, FAILED, INTERRUPTED, CommandError

# In the order of `gpu-flows --help`: a package, and its commands with the line of help that is shown there.
_COMMANDS_BY_PACKAGE = [
    (
        "gpu_flows.cli",
        {
            "demo": "Run 20 training jobs on a simulated cluster.",
            "up": "Start a Prefect server, a pool, its blocks and a worker here.",
        },
    ),
    (
        "gpu_flows.cli.jobs",
        {
            "submit": "Submit a job: a command, a container or a deployment's run.",
            "queue": "List waiting jobs with their reasons, and running jobs.",
            "why": "Explain one run: why it waits, where it runs, how it ended.",
            "logs": "Print the output of a run, also while it runs.",
            "history": "List jobs, also those that have ended.",
            "cancel": "Cancel runs that have not ended.",
            "hold": "Keep waiting jobs from starting.",
            "release": "Let held jobs start.",
            "suspend": "Let running jobs save, stop and free their devices.",
            "resume": "Let suspended jobs continue.",
            "priority": "Change the priority of a waiting job.",
        },
    ),
    (
        "gpu_flows.cli.jobs",
        {
            "drain": "Start no more jobs on a node.",
            "undrain": "Take a drained node back into service.",
        },
    ),
    (
        "gpu_flows.cli",
        {
            "gpus": "Show every device with its load, its health and its jobs.",
            "policies": "List the available policies with their options.",
            "policy": "Show or change the policy of a pool.",
        },
    ),
    (
        "gpu_flows.cli.simulation",
        {
            "simulate": "Run a workload on a simulated cluster.",
            "compare": "Compare policies on the same workload.",
        },
    ),
    ("gpu_flows.cli", {"whatif": "Replay recorded jobs under other policies or devices."}),
    ("gpu_flows.cli", {"predict": "Predict the memory and the time of a job before it runs."}),
    ("gpu_flows.cli", {"rl": "Train and evaluate the learned policy."}),
    (
        "gpu_flows.cli",
        {
            "sql": "Query the warehouse: SQL, or a named query.",
            "dashboard": "Show a pool live in the browser.",
            "report": "Write a report of a pool: one HTML file with figures.",
            "automations": "Install automations that tell of long waits and idle GPUs.",
            "metrics": "Print a pool's numbers for Prometheus (OpenMetrics).",
            "export": "Write the tables and views of the warehouse to files.",
        },
    ),
    ("gpu_flows.cli.doctor", {"doctor": "Check the setup, and show how to fix what is wrong."}),
]

# Name -> (line of help, where the command is).
COMMANDS = {
    name: (line, f"{package}.{name}:{name}")
    for package, commands in _COMMANDS_BY_PACKAGE
    for name, line in commands.items()
}


class Commands(TyperGroup):
    """Lists every command by its line of help, and imports only the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (line, _) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else listed, rest


def load(name: str) -> Any:
    """Import the command of this name and return it."""
    from gpu_flows.cli.options import add_command

    module, _, attribute = COMMANDS[name][1].partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    add_command(single, name, found)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="`gpu-flows COMMAND --help` describes a command, with examples.",
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
        if hasattr(stream, "reconfigure"):  # a terminal's narrow encoding must not make a command fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    from gpu_flows.cli.prefect_settings import use_running_server

    use_running_server()
    try:
        code = app(arguments, prog_name="gpu-flows", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except CommandError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a usage error, so a bug: show the traceback
            raise
        context = getattr(error, "ctx", None)
        print(f"Error: {error.format_message()}", file=sys.stderr)
        print(f"See `{context.command_path if context else 'gpu-flows'} --help`.", file=sys.stderr)
        return BAD_INPUT
