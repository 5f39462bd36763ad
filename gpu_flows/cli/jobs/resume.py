"""`gpu-flows resume`: let suspended jobs continue."""

from __future__ import annotations

from typing import Any

from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.jobs.changes import RunsArgument, act_on_runs
from gpu_flows.cli.jobs.runs import name_run, shorten
from gpu_flows.cli.jobs.suspend import check_accepted
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import PrefectClient


@examples("gpu-flows resume brave-otter", "gpu-flows resume 1ae36b2c 77c0d5f1")
def resume(runs: RunsArgument, pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Let suspended jobs continue: they wait in the queue again, and start from their checkpoints."""
    act_on_runs(pool, runs, as_json, _resume_run, done="resumed; it waits for devices")


def _resume_run(client: PrefectClient, run: dict[str, Any]) -> None:
    if run["state_type"] != "PAUSED":
        state = (run.get("state") or {}).get("name") or run["state_type"].capitalize()
        raise CommandError(
            f"{name_run(run)} is {state}. Only a suspended job can be resumed.",
            f"`gpu-flows why {shorten(run['id'])}` explains its state.",
        )
    check_accepted(run, client.post(f"/flow_runs/{run['id']}/resume", {}))
