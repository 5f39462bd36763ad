"""`gpu-flows cancel`: cancel waiting and running runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.jobs.runs import FINAL_STATES, find_run
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import PrefectClient

CANCELLING = {"state": {"type": "CANCELLING", "name": "Cancelling"}}


@examples("gpu-flows cancel brave-otter", "gpu-flows cancel 1ae36b2c 77c0d5f1 --json")
def cancel(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names, ids, or beginnings of ids.")],
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Cancel runs that wait, run, or were preempted.

    A running job is asked to stop and has its grace period to do so. A run that has ended stays as it is.
    Exit code 1 means that a run was not found; the others are cancelled all the same.
    """
    client = PrefectClient()
    cancelled: list[dict[str, Any]] = []
    missing: list[str] = []
    for wanted in runs:
        try:
            cancelled.append(_cancel_run(client, find_run(client, pool, wanted)))
        except CommandError as error:
            missing.append(str(error))
    if as_json:
        output.print_json(cancelled)
    elif cancelled:
        output.show(output.make_table(["run", "id", "state"], [list(run.values()) for run in cancelled]))
    if missing:
        raise CommandError(" ".join(missing))


def _cancel_run(client: PrefectClient, run: dict[str, Any]) -> dict[str, Any]:
    """Set the state that the UI's cancel button sets. The server itself cancels a run without a process."""
    state = (run.get("state") or {}).get("name", "")
    if run["state_type"] not in FINAL_STATES:
        response = client.post(f"/flow_runs/{run['id']}/set_state", CANCELLING)
        state = (response.get("state") or {}).get("name", state)
    return {"run": run["name"], "id": run["id"], "state": state}
