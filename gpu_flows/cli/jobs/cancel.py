"""`gpu-flows cancel`: cancel runs that have not ended."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.jobs.changes import for_each_run, raise_all
from gpu_flows.cli.jobs.pool_jobs import RunDescriber, find_active_runs, find_paused_runs, find_waiting_runs
from gpu_flows.cli.jobs.runs import name_run, shorten
from gpu_flows.cli.jobs.tables import draw_jobs
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.prefect_api.conventions import FINAL_STATES

CANCELLING = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
MOST_NAMED = 5  # runs that the question before a cancellation names


@examples(
    "gpu-flows cancel brave-otter",
    "gpu-flows cancel 1ae36b2c 77c0d5f1 --json",
    "gpu-flows cancel --user ada",
    "gpu-flows cancel --all --yes",
)
def cancel(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Names, ids, or beginnings of ids.")
    ] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="All jobs of a user that have not ended.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="All jobs of the pool that have not ended.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --user and --all.")] = False,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Cancel runs that wait, run, were preempted or are suspended.

    A running job is asked to stop and has its grace period to do so. A run that has ended stays as it is.
    Exit code 1 means that a run was not found; the others are cancelled all the same. Runs that are
    scheduled for later are cancelled only by their name or id.
    """
    if sum(map(bool, (runs, user, everything))) != 1:
        raise BadInput("Name runs, or give --user NAME, or --all.", "`gpu-flows queue --all` lists the runs.")
    errors: list[CommandError] = []
    if runs:
        cancelled, errors = for_each_run(pool, runs, _cancel_run)
    else:
        client = PrefectClient()
        found = _find_jobs(client, pool, user)
        if found and not yes:
            _confirm(found)
        cancelled = [_cancel_run(client, client.get(f"/flow_runs/{run['id']}")) for run in found]
    if as_json:
        output.print_json(cancelled)
    elif cancelled:
        rows = [[shorten(run["id"]), run["run"], run["state"]] for run in cancelled]
        output.show(draw_jobs(["id", "run", "state"], rows))
    elif not errors:
        output.print_remark(
            f"No job{f' of {user}' if user else ''} waits, runs or is suspended in pool {pool!r}."
        )
    raise_all(errors)


def _find_jobs(client: PrefectClient, pool: str, user: str) -> list[dict[str, Any]]:
    """The runs that wait, run or are paused. Waiting ones come first, so that none starts meanwhile, and
    of these the newest, so that none is refused because the run is cancelled after which it was to start."""
    describer = RunDescriber(client, client.read_pool(pool))
    found = find_waiting_runs(client, pool)[::-1] + find_active_runs(client, pool)
    found += find_paused_runs(client, pool)
    describer.load_deployments(found)
    return [run for run in found if not user or describer.describe(run)["user"] == user]


def _confirm(runs: list[dict[str, Any]]) -> None:
    names = ", ".join(map(name_run, runs[:MOST_NAMED])) + (", ..." if len(runs) > MOST_NAMED else "")
    which = f"{len(runs)} job{'s' if len(runs) > 1 else ''}: {names}"
    if not sys.stdin.isatty():
        raise BadInput(f"This would cancel {which}.", "Nothing was cancelled; --yes confirms it.")
    output.print_remark(f"This cancels {which}.")
    typer.confirm("Cancel?", abort=True, err=True)


def _cancel_run(client: PrefectClient, run: dict[str, Any]) -> dict[str, Any]:
    """Set the state that the UI's cancel button sets. The server itself cancels a run without a process."""
    state = (run.get("state") or {}).get("name", "")
    if run["state_type"] not in FINAL_STATES:
        response = client.post(f"/flow_runs/{run['id']}/set_state", CANCELLING)
        state = (response.get("state") or {}).get("name", state)
    return {"run": run["name"], "id": run["id"], "state": state}
