"""`gpu-flows cancel`: stop runs, whatever they are at."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.problem import Problem
from gpu_flows.cli.runs import FINAL, find
from gpu_flows.cli.server import Server

CANCELLING = {"state": {"type": "CANCELLING", "name": "Cancelling"}}


@parts.examples("gpu-flows cancel brave-otter", "gpu-flows cancel 1ae36b2c 77c0d5f1 --json")
def cancel(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Names, ids, or the beginnings of ids.")
    ],
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Cancel runs that wait, run, or were preempted.

    One that runs is asked to stop and has its grace to do so. One that has ended stays as it is. Exit
    code 1 means that a run was not found; the others are cancelled all the same.
    """
    server = Server()
    told: list[dict[str, Any]] = []
    missing: list[str] = []
    for wanted in runs:
        try:
            told.append(_cancel(server, find(server, pool, wanted)))
        except Problem as problem:
            missing.append(str(problem))
    if as_json:
        parts.print_json(told)
    elif told:
        parts.show(parts.table(["run", "id", "state"], [[each[key] for key in each] for each in told]))
    if missing:
        raise Problem(" ".join(missing))


def _cancel(server: Server, run: dict[str, Any]) -> dict[str, Any]:
    """What the UI's button does: the server cancels at once what has no process."""
    state = (run.get("state") or {}).get("name", "")
    if run["state_type"] not in FINAL:
        answer = server.post(f"/flow_runs/{run['id']}/set_state", CANCELLING)
        state = (answer.get("state") or {}).get("name", state)
    return {"run": run["name"], "id": run["id"], "state": state}
