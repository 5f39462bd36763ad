"""Who waits and who runs in a pool: from the worker if it serves the pool here, else from Prefect.

The worker's status file has everything and costs the server nothing. Where there is none, the
server knows at least what waits, and what was last written on each run.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from gpu_flows.cli.server import Server
from gpu_flows.worker.status import Status, read_status

WORKER, SERVER = "worker", "server"
ACTIVE = ["PENDING", "RUNNING", "CANCELLING"]
FORM = "gpu_flows.flows.container:container"  # a flow whose parameters say what to run


def look(pool: str) -> dict[str, Any]:
    """`waiting` in the order of the line, `running`, and where this was read from."""
    status = read_status(pool)
    return _from_worker(status) if status else _from_server(Server(), pool)


def _from_worker(status: Status) -> dict[str, Any]:
    return {
        "pool": status.pool,
        "source": WORKER,
        "policy": status.policy,
        "trouble": status.trouble,
        "waiting": [
            {"position": place, **job, "waited_s": round(status.at - job["submitted"], 1)}
            for place, job in enumerate(status.waiting, 1)
        ],
        "running": [{**job, "running_s": round(status.at - job["since"], 1)} for job in status.running],
    }


def _from_server(server: Server, pool: str) -> dict[str, Any]:
    asks = Asks(server, server.pool(pool))
    now = time.time()
    due = {"state": {"type": {"any_": ["SCHEDULED"]}}, "next_scheduled_start_time": {"before_": _iso(now)}}
    waiting = runs_of(server, pool, due, "NEXT_SCHEDULED_START_TIME_ASC")
    running = runs_of(server, pool, {"state": {"type": {"any_": ACTIVE}}}, "START_TIME_ASC")
    asks.learn(waiting + running)
    served = bool(server.workers(pool))
    return {
        "pool": pool,
        "source": SERVER,
        "policy": None,
        "trouble": "" if served else f"No worker serves pool {pool!r}, so nothing starts.",
        "waiting": [
            {"position": place, **job, "waited_s": round(max(0.0, now - job["submitted"]), 1)}
            for place, job in enumerate(map(asks.job, waiting), 1)
        ],
        "running": [
            {**asks.job(run), "since": since, "running_s": round(max(0.0, now - since), 1)}
            for run in running
            for since in [when(run.get("start_time")) or now]
        ],
    }


def runs_of(server: Server, pool: str, which: dict[str, Any], sort: str) -> list[dict[str, Any]]:
    in_pool = {"name": {"any_": [pool]}}
    return list(server.page("/flow_runs/filter", flow_runs=which, work_pools=in_pool, sort=sort))


class Asks:
    """What runs ask for: the pool's defaults, the deployment's job variables, the run's own."""

    def __init__(self, server: Server, pool: dict[str, Any]) -> None:
        self._server = server
        form = pool.get("base_job_template", {}).get("variables", {}).get("properties", {})
        self._defaults = {name: field.get("default") for name, field in form.items()}
        self._deployments: dict[str, dict[str, Any]] = {}

    def learn(self, runs: list[dict[str, Any]]) -> None:
        """Read the deployments of these runs, all at once."""
        ids = sorted({run["deployment_id"] for run in runs if run.get("deployment_id")})
        for start in range(0, len(ids), 100):
            some = {"id": {"any_": ids[start : start + 100]}}
            for deployment in self._server.page("/deployments/filter", deployments=some):
                self._deployments[deployment["id"]] = deployment

    def job(self, run: dict[str, Any]) -> dict[str, Any]:
        """A run in the shape of the worker's status."""
        deployment = self._deployments.get(run.get("deployment_id") or "", {})
        asked = {**self._defaults, **(deployment.get("job_variables") or {})}
        form = run.get("parameters") or {}
        if deployment.get("entrypoint") == FORM and form.get("required_gpus"):
            asked["gpus"] = form["required_gpus"]
        asked |= run.get("job_variables") or {}
        state = run.get("state") or {}
        return {
            "id": run["id"],
            "name": run["name"],
            "user": _user(run),
            "gpus": asked.get("gpus", 1),
            "priority": asked.get("priority", 0),
            "submitted": when(run.get("expected_start_time")) or when(run.get("created")) or 0.0,
            "state": state.get("name", ""),
            "reason": "",
            "why": state.get("message") or state.get("name", ""),
            "fix": "",
        }


def when(text: str | None) -> float | None:
    """A time of the server's, in seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _user(run: dict[str, Any]) -> str:
    """As the worker tells it: a `user:` tag, else whoever Prefect says created the run."""
    tags = sorted(tag for tag in run.get("tags") or [] if tag.startswith("user:"))
    return (
        tags[0].removeprefix("user:")
        if tags
        else str((run.get("created_by") or {}).get("display_value") or "")
    )
