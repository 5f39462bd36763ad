"""The waiting and the running jobs of a pool, read from the worker's status file or from the server.

The status file is used where a worker serves the pool on this machine: it has every detail and costs the
server nothing. Otherwise the server knows the runs, their order by due time, and their last state message.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.jobs.runs import is_suspended
from gpu_flows.cli.prefect_client import PrefectClient, template_fields
from gpu_flows.prefect_api.conventions import CONTAINER_FLOW, Ownership, find_user
from gpu_flows.schedulers.reasons import HELD_BACK, NOT_EVALUATED
from gpu_flows.worker.status import Status, read_last_status, read_status
from gpu_flows.worker.status_text import LATE_S, measure_wait, place_devices

WORKER, SERVER = "worker", "server"
ACTIVE_STATES = ["PENDING", "RUNNING", "CANCELLING"]


def read_pool_jobs(pool: str) -> dict[str, Any]:
    """`waiting` in the order of the queue, `running`, `suspended`, and the `source` of the first two."""
    status = read_status(pool)
    jobs = _read_from_worker(status) if status else _read_from_server(PrefectClient(), pool)
    return {**jobs, "suspended": _find_suspended(pool, {job["id"] for job in jobs["running"]})}


def _find_suspended(pool: str, running: set[str]) -> list[dict[str, Any]]:
    """The jobs that wait until someone resumes them. Only the server knows them."""
    with suppress(CommandError):
        client = PrefectClient(timeout_s=3)
        runs = [
            run for run in find_paused_runs(client, pool) if is_suspended(run) and run["id"] not in running
        ]
        if runs:
            describer = RunDescriber(client, client.read_pool(pool))
            describer.load_deployments(runs)
            return list(map(describer.describe, runs))
    return []


def _read_from_worker(status: Status) -> dict[str, Any]:
    return {
        "pool": status.pool,
        "source": WORKER,
        "policy": status.policy,
        "trouble": " ".join(filter(None, (_note_age(status), status.trouble))),
        "no_forecast": status.no_forecast,
        "waiting": [
            {
                "position": None if job["reason"] in HELD_BACK else position,
                **job,
                "waited_s": round(measure_wait(job, status.at), 1),
            }
            for position, job in enumerate(status.waiting, 1)
        ],
        "running": [
            {
                **job,
                "running_s": round(status.at - job["since"], 1),
                "on": place_devices(job["devices"], status.devices),
            }
            for job in status.running
        ],
    }


def _note_age(status: Status) -> str:
    age = time.time() - status.at
    if age < LATE_S:
        return ""
    return (
        f"This is {output.format_duration(age)} old: worker {status.worker!r} has not reported since, and may"
        " have stopped."
    )


def _read_from_server(client: PrefectClient, pool: str) -> dict[str, Any]:
    describer = RunDescriber(client, client.read_pool(pool))
    now = time.time()
    waiting, running = find_waiting_runs(client, pool), find_active_runs(client, pool)
    describer.load_deployments(waiting + running)
    served = bool(client.list_workers(pool))
    return {
        "pool": pool,
        "source": SERVER,
        "policy": None,
        "trouble": "" if served else f"{describe_absence(pool)} {advise_to_serve(pool)}",
        "waiting": [
            {"position": position, **job, "waited_s": round(measure_wait(job, now), 1)}
            for position, job in enumerate(map(describer.describe, waiting), 1)
        ],
        "running": [
            {
                **describer.describe(run),
                "since": since,
                "running_s": round(max(0.0, now - since), 1),
                "devices": None,  # only the worker knows them
                "on": "?" if run["state_type"] == "RUNNING" else f"? ({run['state_type'].lower()})",
            }
            for run in running
            for since in [parse_time(run.get("start_time")) or now]
        ],
    }


def describe_absence(pool: str) -> str:
    """That no worker serves the pool and, if one did on this machine, when it last reported."""
    last = read_last_status(pool)
    since = f" since {output.format_duration(time.time() - last.at)}" if last else ""
    return f"No worker serves pool {pool!r}{since}, so no job starts."


def advise_to_serve(pool: str) -> str:
    return f"Start a worker: prefect worker start --pool {pool}"


def find_waiting_runs(client: PrefectClient, pool: str) -> list[dict[str, Any]]:
    """The runs that are due and not started, in the order in which they were due."""
    due = {
        "state": {"type": {"any_": ["SCHEDULED"]}},
        "next_scheduled_start_time": {"before_": to_iso(time.time())},
    }
    return _find_runs(client, pool, due, "NEXT_SCHEDULED_START_TIME_ASC")


def find_active_runs(client: PrefectClient, pool: str) -> list[dict[str, Any]]:
    """The runs that the worker has taken, in the order in which they started."""
    return _find_runs(client, pool, {"state": {"type": {"any_": ACTIVE_STATES}}}, "START_TIME_ASC")


def find_paused_runs(client: PrefectClient, pool: str) -> list[dict[str, Any]]:
    """The runs that are suspended, or paused in their process, in the order in which they started."""
    return _find_runs(client, pool, {"state": {"type": {"any_": ["PAUSED"]}}}, "START_TIME_ASC")


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
        submitted = parse_time(run.get("expected_start_time")) or parse_time(run.get("created")) or 0.0
        return {
            "id": run["id"],
            "name": run["name"],
            "user": find_user(
                _describe_ownership(run), _describe_ownership(deployment), variables.get("user")
            ),
            "gpus": variables.get("gpus", 1),
            "priority": variables.get("priority", 0),
            "submitted": submitted,
            "waited": max(0.0, time.time() - submitted - float(run.get("total_run_time") or 0.0)),
            "state": state.get("name", ""),
            "reason": "",
            "class": NOT_EVALUATED,
            "why": state.get("message") or state.get("name", ""),
            "fix": "",
        }


def parse_time(text: str | None) -> float | None:
    """A time of the Prefect API in seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None


def to_iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _describe_ownership(source: dict[str, Any]) -> Ownership:
    creator = source.get("created_by") or {}
    return Ownership(
        source.get("job_variables") or {},
        source.get("tags") or (),
        creator.get("display_value") or "",
        creator.get("type") or "",
    )
