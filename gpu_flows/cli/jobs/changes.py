"""What `hold`, `release`, `priority`, `suspend`, `resume` and `cancel` share: each changes several runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.jobs.runs import change_waiting_run, find_run, name_run
from gpu_flows.cli.prefect_client import PrefectClient

RunsArgument = Annotated[list[str], typer.Argument(metavar="RUN", help="Names, ids, or beginnings of ids.")]


def for_each_run(
    pool: str, wanted: list[str], act: Callable[[PrefectClient, dict[str, Any]], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[CommandError]]:
    """Find each run and act on it. An error with one run does not keep the others from it."""
    client = PrefectClient()
    done: list[dict[str, Any]] = []
    errors: list[CommandError] = []
    for each in wanted:
        try:
            done.append(act(client, find_run(client, pool, each)))
        except CommandError as error:
            errors.append(error)
    return done, errors


def raise_all(errors: list[CommandError]) -> None:
    """Raise one error for all of them, with the advice of the last."""
    if errors:
        raise CommandError(" ".join(error.what for error in errors), errors[-1].fix, errors[-1].exit_code)


def act_on_runs(
    pool: str,
    wanted: list[str],
    as_json: bool,
    act: Callable[[PrefectClient, dict[str, Any]], None],
    done: str,
    **shown: Any,
) -> None:
    """Act on each of these runs and print that it is done; `shown` is added to the JSON."""

    def act_and_return(client: PrefectClient, run: dict[str, Any]) -> dict[str, Any]:
        act(client, run)
        return run

    changed, errors = for_each_run(pool, wanted, act_and_return)
    if as_json:
        output.print_json([{"run": run["name"], "id": run["id"], **shown} for run in changed])
    else:
        for run in changed:
            print(escape(f"{name_run(run)}: {done}."))
    raise_all(errors)


def change_runs(pool: str, wanted: list[str], as_json: bool, done: str, **variables: Any) -> None:
    """Set job variables of these waiting runs and print that it is done."""

    def change(client: PrefectClient, run: dict[str, Any]) -> None:
        change_waiting_run(client, run, **variables)

    act_on_runs(pool, wanted, as_json, change, done, **variables)
