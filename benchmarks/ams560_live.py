"""The live part of the AMS-560 study: the schedule `ams560` of the deployment `benchmark`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml
from common import log_progress, wait_until
from live_pool import Api, private_stack

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.bootstrap.local_stack import prefect_file
from gpu_flows.schedulers.policy import policies

CLUSTER = "2x2:A30:24"
TIMEOUT_S = 900.0
LIVE_COLUMNS = (
    *("policy", "jobs", "makespan_s", "avg_turnaround_s", "avg_queueing_s"),
    *("allocation_percent", "utilization_percent"),
)
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def read_workload() -> dict[str, Any]:
    """Return the workload of the schedule, without policies that are not installed."""
    deployments = yaml.safe_load(prefect_file().read_text())["deployments"]
    (benchmark,) = (deployment for deployment in deployments if deployment["name"] == "benchmark")
    (study,) = (schedule for schedule in benchmark["schedules"] if schedule["slug"] == "ams560")
    workload: dict[str, Any] = study["parameters"]["workload"]
    for policy in set(workload["policies"]) - policies().keys():
        print(f"{policy}: this policy is not installed, so its live round is left out.")
        workload["policies"].remove(policy)
    return workload


def run_live(warehouse: Path | None) -> list[tuple[Any, ...]]:
    """Run the tasks under each policy, and return the values of LIVE_COLUMNS, the best turnaround first.
    The facts are recorded in this warehouse, or in one that is removed."""
    workload = read_workload()
    with private_stack(CLUSTER) as stack:
        api, database = Api(stack.api_url), warehouse or stack.home / "warehouse.duckdb"
        if warehouse:
            block = api.get("/block_types/slug/gpu-warehouse/block_documents/name/default")["id"]
            api.patch(f"/block_documents/{block}", {"data": {"path": str(warehouse.resolve())}})
        stack.deploy()
        stack.start_worker()
        deployment = api.get("/deployments/name/benchmark/benchmark")["id"]
        log_progress(f"{workload['jobs']} tasks under each of {', '.join(workload['policies'])}")
        began = time.monotonic()
        body = {"parameters": {"workload": workload}}
        run = api.post(f"/deployments/{deployment}/create_flow_run", body)["id"]

        def state() -> str:
            return str(api.get(f"/flow_runs/{run}")["state"]["type"])

        wait_until(lambda: state() in ENDED, "the benchmark has ended", TIMEOUT_S, every_s=2.0)
        if state() != "COMPLETED":
            raise SystemExit(f"The benchmark has not completed: {api.get(f'/flow_runs/{run}')['state']}")
        log_progress(f"the live rounds took {time.monotonic() - began:.0f} s")
        name = api.get(f"/flow_runs/{run}")["name"]
        summary = (
            f"select {', '.join(LIVE_COLUMNS)} from experiment_summary where starts_with(experiment, $name)"
        )
        return run_query(database, f"{summary} order by avg_turnaround_s", {"name": name}).rows
