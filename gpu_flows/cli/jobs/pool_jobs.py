"""The waiting and the running jobs of a pool, read from the worker's status file or from the server.

The status file is used where a worker serves the pool on this machine: it has every detail and costs the
server nothing. Otherwise the server knows the runs, their order by due time, and their last state message.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from gpu_flows.cli.prefect_client import PrefectClient, template_fields
from gpu_flows.worker.status import Status, read_status

WORKER, SERVER = "worker", "server"
ACTIVE_STATES = ["PENDING", "RUNNING", "CANCELLING"]
CONTAINER_FLOW = "gpu_flows.flows.container:container"  # its parameters state the number of GPUs


def read_pool_jobs(pool: str) -> dict[str, Any]:
    """`waiting` in the order of the queue, `running`, and the `source` of both."""
    status = read_status(pool)
    return _read_from_worker(status) if status else _read_from_server(PrefectClient(), pool)


def _read_from_worker(status: Status) -> dict[str, Any]:
    return {
        "pool": status.pool,
        "source": WORKER,
        "policy": status.policy,
        "trouble": status.trouble,
        "waiting": [
            {"position": position, **job, "waited_s": round(status.at - job["submitted"], 1)}
            for position, job in enumerate(status.waiting, 1)
        ],
        "running": [{**job, "running_s": round(status.at - job["since"], 1)} for job in status.running],
    }


def _read_from_server(client: PrefectClient, pool: str) -> dict[str, Any]:
    describer = RunDescriber(client, client.read_pool(pool))
    now = time.time()
    due = {"state": {"type": {"any_": ["SCHEDULED"]}}, "next_scheduled_start_time": {"before_": _iso(now)}}
    waiting = _find_runs(client, pool, due, "NEXT_SCHEDULED_START_TIME_ASC")
    running = _find_runs(client, pool, {"state": {"type": {"any_": ACTIVE_STATES}}}, "START_TIME_ASC")
    describer.load_deployments(waiting + running)
    served = bool(client.list_workers(pool))
    return {
        "pool": pool,
        "source": SERVER,
        "policy": None,
        "trouble": "" if served else f"No worker serves pool {pool!r}, so no job starts.",
        "waiting": [
            {"position": position, **job, "waited_s": round(max(0.0, now - job["submitted"]), 1)}
            for position, job in enumerate(map(describer.describe, waiting), 1)
        ],
        "running": [
            {**describer.describe(run), "since": since, "running_s": round(max(0.0, now - since), 1)}
            for run in running
            for since in [parse_time(run.get("start_time")) or now]
        ],
    }


def _find_runs(client: PrefectClient, pool: str, which: dict[str, Any], sort: str) -> list[dict[str, Any]]:
    in_pool = {"name": {"any_": [pool]}}
    return list(client.fetch_all("/flow_runs/filter", flow_runs=which, work_pools=in_pool, sort=sort))


class RunDescriber:
    """Describes Prefect's runs as jobs. What a job requests comes from the pool's defaults, the
    deployment's job variables and the run's own, each overriding the one before."""

    def __init__(self, client: PrefectClient, pool: dict[str, Any]) -> None:
        self._client = client
        self._defaults = {name: field.get("default") for name, field in template_fields(pool).items()}
        self._deployments: dict[str, dict[str, Any]] = {}

    def load_deployments(self, runs: list[dict[str, Any]]) -> None:
        """Read the deployments of these runs with few requests."""
        ids = sorted({run["deployment_id"] for run in runs if run.get("deployment_id")})
        for start in range(0, len(ids), 100):
            some = {"id": {"any_": ids[start : start + 100]}}
            for deployment in self._client.fetch_all("/deployments/filter", deployments=some):
                self._deployments[deployment["id"]] = deployment

    def describe(self, run: dict[str, Any]) -> dict[str, Any]:
        """A run in the form of a job of the worker's status."""
        deployment = self._deployments.get(run.get("deployment_id") or "", {})
        variables = {**self._defaults, **(deployment.get("job_variables") or {})}
        parameters = run.get("parameters") or {}
        if deployment.get("entrypoint") == CONTAINER_FLOW and parameters.get("required_gpus"):
            variables["gpus"] = parameters["required_gpus"]
        variables |= run.get("job_variables") or {}
        state = run.get("state") or {}
        return {
            "id": run["id"],
            "name": run["name"],
            "user": _find_user(run),
            "gpus": variables.get("gpus", 1),
            "priority": variables.get("priority", 0),
            "submitted": parse_time(run.get("expected_start_time")) or parse_time(run.get("created")) or 0.0,
            "state": state.get("name", ""),
            "reason": "",
            "why": state.get("message") or state.get("name", ""),
            "fix": "",
        }


def parse_time(text: str | None) -> float | None:
    """A time of the Prefect API in seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _find_user(run: dict[str, Any]) -> str:
    """The user by the worker's rule: a `user:` tag, else the account that created the run."""
    tags = sorted(tag for tag in run.get("tags") or [] if tag.startswith("user:"))
    if tags:
        return str(tags[0].removeprefix("user:"))
    return str((run.get("created_by") or {}).get("display_value") or "")
