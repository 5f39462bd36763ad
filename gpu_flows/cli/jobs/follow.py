"""Waiting for submitted runs, with each new state on stderr."""

from __future__ import annotations

import math
import time
from typing import Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import INTERRUPTED
from gpu_flows.cli.jobs.runs import FINAL_STATES
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.common.retry import wait_until

POLL_S = 0.5


def follow_runs(client: PrefectClient, runs: list[dict[str, Any]], quiet: bool) -> list[dict[str, Any]]:
    """Print every new state until all runs have ended. Returns the runs in their final states."""
    current = {run["id"]: run for run in runs}
    printed: dict[str, str | None] = {}  # run -> its newest state

    def all_ended() -> bool:
        for run_id, run in list(current.items()):
            if run_id in printed and run["state_type"] not in FINAL_STATES:
                current[run_id] = run = client.get(f"/flow_runs/{run_id}")
            state = run.get("state") or {}
            is_new = run_id not in printed or printed[run_id] != state.get("id")
            printed[run_id] = state.get("id")
            if is_new and not quiet:
                _print_state(run, state, name_it=len(runs) > 1)
        return all(run["state_type"] in FINAL_STATES for run in current.values())

    try:
        wait_until(all_ended, math.inf, POLL_S)
    except KeyboardInterrupt:
        for run_id, run in current.items():
            if run["state_type"] not in FINAL_STATES:
                output.print_remark(f"{run['name']} continues; `gpu-flows why {run_id}` shows its state.")
        raise typer.Exit(INTERRUPTED) from None
    return [current[run["id"]] for run in runs]


def _print_state(run: dict[str, Any], state: dict[str, Any], name_it: bool) -> None:
    name = f"{run['name']}  " if name_it else ""
    text = f"{name}{state.get('name', '')}  {state.get('message') or ''}".rstrip()
    output.print_remark(f"{time.strftime('%H:%M:%S')}  {text}")
