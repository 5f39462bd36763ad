"""`gpu-flows suspend`: let running jobs save, stop and free their devices until they are resumed."""

from __future__ import annotations

from typing import Any

from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.jobs.changes import RunsArgument, act_on_runs
from gpu_flows.cli.jobs.runs import name_run, shorten
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import PrefectClient

# What Prefect's own `suspend_flow_run` sets, but without a timeout after which the run could not be resumed.
SUSPENDED = {"type": "PAUSED", "name": "Suspended", "state_details": {"pause_reschedule": True}}


@examples("gpu-flows suspend brave-otter", "gpu-flows suspend 1ae36b2c 77c0d5f1")
def suspend(runs: RunsArgument, pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Let running jobs save, stop and free their devices, until `gpu-flows resume`.

    A resumed job continues from its checkpoint; a job that saves nothing starts from the beginning. A job
    that waits cannot be suspended: `gpu-flows hold` keeps it from starting.
    """
    act_on_runs(pool, runs, as_json, _suspend_run, done="suspended; `gpu-flows resume` continues it")


def _suspend_run(client: PrefectClient, run: dict[str, Any]) -> None:
    if run["state_type"] != "RUNNING":
        state = (run.get("state") or {}).get("name") or run["state_type"].capitalize()
        raise CommandError(
            f"{name_run(run)} is {state}. Only a running job can be suspended.",
            f"`gpu-flows hold {shorten(run['id'])}` keeps a waiting job from starting.",
        )
    response = client.post(f"/flow_runs/{run['id']}/set_state", {"state": SUSPENDED})
    check_accepted(run, response)


def check_accepted(run: dict[str, Any], response: dict[str, Any]) -> None:
    """Raise what the server says if it did not change the run's state."""
    if response.get("status", "ACCEPT") != "ACCEPT":
        why = (response.get("details") or {}).get("reason") or "no reason was given"
        raise CommandError(f"{name_run(run)} stays as it is. The Prefect server refuses: {why}")
