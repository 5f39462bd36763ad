"""A pool as its users see it: runs are created, observed and cancelled through the server's API."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
from conftest import eventually
from prefect.flows import load_flow_from_entrypoint

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.common.retry import wait_until
from gpu_flows.prefect_api.run_logs import OUTPUT
from gpu_flows.worker.status import Status

ENTRYPOINTS = {
    "command": "gpu_flows.flows.command:command",
    "container": "gpu_flows.flows.container:container",
    "regret": "gpu_flows.deployments.regret:regret",
    "retrain": "gpu_flows.deployments.retrain:retrain",
    "rl-retrain": "gpu_flows.deployments.rl_retrain:rl_retrain",
    "train": "gpu_flows.flows.train:train",
}
SET_DIRECTORY = "prefect.deployments.steps.set_working_directory"
# Counts the pairs of attempts that held the same device at the same time.
DOUBLE_ALLOCATIONS = """
    select count(*) from allocations a join allocations b on a.device_id = b.device_id
        and (a.job_id, a.attempt) < (b.job_id, b.attempt)
    join attempt_ends x on (a.job_id, a.attempt) = (x.job_id, x.attempt)
    join attempt_ends y on (b.job_id, b.attempt) = (y.job_id, y.attempt)
    where a.since < y.ended and b.since < x.ended
"""


def wait_for_file(path: Path) -> str:
    """A shell line that ends when this file is there. A job with it lasts as long as its test needs it, also
    on a slow machine."""
    return f"until test -e {path}; do sleep 0.1; done"


class Pool:
    def __init__(self, stack: Stack, flow: str = "command", folder: str = "") -> None:
        """Create a deployment of the flow, as `prefect deploy` does in that folder."""
        self.stack = stack
        self._http = httpx.Client(base_url=stack.api_url, timeout=60)
        flow_id = self.post("/flows/", {"name": flow})["id"]
        self.deployment = self.post(
            "/deployments/",
            {
                "name": stack.pool,
                "flow_id": flow_id,
                "entrypoint": ENTRYPOINTS[flow],
                "work_pool_name": stack.pool,
                "pull_steps": [{SET_DIRECTORY: {"directory": folder}}] if folder else None,
            },
        )["id"]

    def request(self, method: str, path: str, **kwargs: Any) -> Any:
        """Send a request to the server. Retry while it is unreachable or busy; SQLite has one writer at a
        time."""

        def try_request() -> httpx.Response | None:
            try:
                response = self._http.request(method, path, **kwargs)
            except httpx.TransportError:
                return None
            return response if response.status_code != 503 else None

        response: httpx.Response = eventually(try_request, f"{method} {path} succeeds")
        response.raise_for_status()
        return response.json() if response.content else None

    def post(self, path: str, body: Any) -> Any:
        return self.request("POST", path, json=body)

    def use_parameters_of(self, flow: str) -> None:
        """Store the schema of the flow's parameters with the deployment, as `prefect deploy` does."""
        schema = load_flow_from_entrypoint(ENTRYPOINTS[flow]).parameters.model_dump_for_openapi()
        self.request("PATCH", f"/deployments/{self.deployment}", json={"parameter_openapi_schema": schema})

    # -- runs ---------------------------------------------------------------------------------

    def submit(
        self,
        command: str = "true",
        parameters: dict[str, Any] | None = None,
        retries: int = 0,
        **variables: Any,
    ) -> str:
        """Create a run of the deployment's flow with this command as its parameter."""
        body = {"parameters": parameters or {"command": command, "shell": True}, "job_variables": variables}
        if retries:
            body["empirical_policy"] = {"retries": retries, "retry_delay": 0}
        return str(self.post(f"/deployments/{self.deployment}/create_flow_run", body)["id"])

    def command(self, command: str, **variables: Any) -> str:
        """Create a run whose command replaces the flow."""
        body = {"parameters": {"command": "unused"}, "job_variables": {"command": command, **variables}}
        return str(self.post(f"/deployments/{self.deployment}/create_flow_run", body)["id"])

    def run(self, run_id: str) -> dict[str, Any]:
        return dict(self.request("GET", f"/flow_runs/{run_id}"))

    def state(self, run_id: str) -> str:
        return str(self.run(run_id)["state"]["name"])

    def states(self, run_id: str) -> list[str]:
        """The names of the run's states, oldest first."""
        states = self.request("GET", "/flow_run_states/", params={"flow_run_id": run_id})
        return [state["name"] for state in sorted(states, key=lambda s: s["timestamp"])]

    def cancel(self, run_id: str) -> None:
        """Cancel the run as the UI does."""
        self.post(f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})

    def suspend(self, run_id: str) -> None:
        """Suspend the run as the UI does."""
        details = {"pause_reschedule": True}
        state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
        self.post(f"/flow_runs/{run_id}/set_state", {"state": state})

    def resume(self, run_id: str) -> None:
        """Resume the run as the UI does."""
        self.post(f"/flow_runs/{run_id}/resume", {})

    def until(self, run_id: str, *names: str, patience_s: float = 150.0) -> dict[str, Any]:
        """Wait until the run is in a state of one of these names."""
        eventually(lambda: self.state(run_id) in names, f"{run_id} is {' or '.join(names)}", patience_s)
        return self.run(run_id)

    def logs(self, run_id: str) -> str:
        return "\n".join(entry["message"] for entry in self._read_logs(run_id))

    def output(self, run_id: str) -> str:
        """The output of a command, without the worker's own lines."""
        return "\n".join(entry["message"] for entry in self._read_logs(run_id) if entry["name"] == OUTPUT)

    def _read_logs(self, run_id: str) -> list[dict[str, Any]]:
        logs = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC"}
        found: list[dict[str, Any]] = self.post("/logs/filter", logs)
        return found

    # -- blocks -------------------------------------------------------------------------------

    def save_policy(
        self,
        name: str,
        protection: dict[str, Any] | None = None,
        prediction: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Save the scheduler block as the UI does. The server does not check the content."""
        data: dict[str, Any] = {"policy": name, "options": {name: options}}
        if protection is not None:
            data["protection"] = protection
        if prediction is not None:
            data["prediction"] = prediction
        self.save_block("gpu-scheduler", data)

    def use_policy(self, name: str, **settings: Any) -> None:
        """Save the scheduler block, and wait until the pool has applied it."""
        self.save_policy(name, **settings)
        self._until_blocks_are_read()

    def use_rules(self, **rules: Any) -> None:
        """Change the rules for containers in the cluster block, and wait until the pool has applied them."""
        self.save_block("gpu-cluster", {**self.block("gpu-cluster")["data"], "containers": rules})
        self.save_block("gpu-scheduler", self.block("gpu-scheduler")["data"])
        self._until_blocks_are_read()

    def _until_blocks_are_read(self) -> None:
        """The pool reads the cluster block before the scheduler block, and tells which version of the latter
        it has read."""
        saved = datetime.fromisoformat(self.block("gpu-scheduler")["updated"])

        def are_read() -> bool:
            read = self.status().policy["saved"]
            return read is not None and datetime.fromisoformat(read) >= saved

        eventually(are_read, "the pool has read its blocks")

    def block(self, slug: str) -> dict[str, Any]:
        return dict(self.request("GET", f"/block_types/slug/{slug}/block_documents/name/{self.stack.pool}"))

    def save_block(self, slug: str, data: dict[str, Any]) -> None:
        body = {"data": data, "merge_existing_data": False}
        self.request("PATCH", f"/block_documents/{self.block(slug)['id']}", json=body)

    # -- the worker's view --------------------------------------------------------------------

    def status(self) -> Status:
        path = self.stack.home / "pools" / self.stack.pool / "status.json"
        return Status(**json.loads(eventually(lambda: path.exists() and path.read_text(), "a status")))

    def holders(self) -> dict[str, list[str]]:
        """The names of the jobs on each device, by device id."""
        return {device["id"]: device["jobs"] for device in self.status().devices}

    def sql(self, query: str, home: Path | None = None) -> list[tuple[Any, ...]]:
        return list(run_query((home or self.stack.home) / "warehouse.duckdb", query).rows)

    def until_recorded(self, query: str, *rows: tuple[Any, ...]) -> None:
        """Wait until the query returns these rows. Facts reach the warehouse seconds after they happened, and
        one after the other."""
        found: list[tuple[Any, ...]] = []

        def is_recorded() -> bool:
            found[:] = self.sql(query)
            return found == [*rows]

        assert wait_until(is_recorded, 90.0), f"{query} has not returned {rows}, but {found}"

    def processes(self, run_id: str) -> list[int]:
        """The ids of all processes of the run but its supervisor, found by their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                is_of_run = process.environ().get("GPU_FLOWS_ATTEMPT", "").startswith(run_id)
                if is_of_run and not any("supervisor." in argument for argument in process.cmdline()):
                    found.append(process.pid)
            except psutil.Error:
                pass
        return found
