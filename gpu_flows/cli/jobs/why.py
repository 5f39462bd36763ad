"""`gpu-flows why RUN`: why a run waits, where it runs, or how it ended."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.table import Table

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.jobs.pool_jobs import RunDescriber, parse_time
from gpu_flows.cli.jobs.runs import FINAL_STATES, find_run, pick_job
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.cli.prefect_settings import build_run_url
from gpu_flows.worker.status import Status, read_status

_ATTEMPTS = """
select attempt, outcome, nodes, gpus, policy, started, ended, run_s, lost_s, detail
from attempt_history left join saved_work using (job_id, attempt)
where job_id = $job order by attempt
"""


@examples("gpu-flows why brave-otter", "gpu-flows why 1ae36b2c", "gpu-flows why brave-otter --json")
def why(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's name, its id, or the beginning of its id.")
    ],
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Explain one run: why it waits and what would help, where it runs, or how it ended.

    If several runs have the name, the newest is explained.
    """
    status = read_status(pool)
    found = _explain_by_worker(status, run) if status else None
    if found is None or _has_ended(found["id"]):
        found = _explain_by_server(PrefectClient(), pool, status, found["id"] if found else run)
    found["attempts"] = _read_attempts(pool, found["id"]) if found.pop("ran", True) else []
    found["ui"] = build_run_url(found["id"])
    if as_json:
        output.print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    times = found.get("preempted")
    shown = {
        **found,
        "devices": ", ".join(found.get("devices") or []),
        "preempted": f"{times} time{'s' if times > 1 else ''}" if times else "",
    }
    order = ["run", "id", "user", "state", "place", "why", "fix", "preempted", "devices", "attempt", "policy"]
    output.show(output.make_value_list(*((name, shown.get(name)) for name in [*order, "for", "ui"])))
    if len(found["attempts"]) > 1:
        print()
        output.show(_draw_attempts(found["attempts"]))


def _read_attempts(pool: str, job_id: str) -> list[dict[str, Any]]:
    """The job's attempts in the warehouse; none if it cannot be queried now."""
    from gpu_flows.analytics.query_runner import QueryError, run_query
    from gpu_flows.cli.sql import find_warehouse

    try:
        found = run_query(find_warehouse(pool), _ATTEMPTS, {"job": job_id}, timeout_s=5)
    except QueryError:
        return []
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def _draw_attempts(attempts: list[dict[str, Any]]) -> Table:
    columns = ["attempt", "began", "ran", "lost", "GPUs", "on", "ended as", "why"]
    rows = [
        [
            attempt["attempt"],
            f"{attempt['started']:%H:%M:%S}",
            output.format_duration(attempt["run_s"]),
            output.format_duration(attempt["lost_s"]) if attempt["lost_s"] else "",
            attempt["gpus"],
            ", ".join(json.loads(attempt["nodes"])),
            attempt["outcome"] or "running",
            attempt["detail"] or "",
        ]
        for attempt in attempts
    ]
    return output.make_table(columns, rows, right=("attempt", "ran", "lost", "GPUs"))


# -- from the worker --------------------------------------------------------------------------


def _explain_by_worker(status: Status, wanted: str) -> dict[str, Any] | None:
    """The explanation from the worker's status; None if the run neither waits nor runs there."""
    job = pick_job([*status.waiting, *status.running], wanted)
    if job is None:
        return None
    if job in status.waiting:
        return {
            **_identify(job),
            "state": "waiting",
            "preempted": job.get("preemptions", 0),
            "ran": bool(job.get("attempts")),
            "place": status.waiting.index(job) + 1,
            "reason": job["reason"],
            "why": job["why"],
            "fix": job["fix"],
            "for": output.format_duration(status.at - job["submitted"]),
        }
    return {
        **_identify(job),
        "state": "stopping" if job.get("stopping") else "running",
        "ran": job["attempt"] > 1,
        "why": job.get("stopping") or "It has its devices.",
        "devices": job["devices"],
        "attempt": job["attempt"],
        "policy": job["policy"],
        "for": output.format_duration(status.at - job["since"]),
    }


def _has_ended(run_id: str) -> bool:
    """Whether the server knows the run's end. It learns it first: the status is up to a second old."""
    with suppress(CommandError):
        return PrefectClient(timeout_s=3).get(f"/flow_runs/{run_id}")["state_type"] in FINAL_STATES
    return False


def _identify(job: dict[str, Any]) -> dict[str, Any]:
    return {"run": job["name"], "id": job["id"], "user": job["user"], "gpus": job["gpus"]}


# -- from the server --------------------------------------------------------------------------


def _explain_by_server(
    client: PrefectClient, pool: str, status: Status | None, wanted: str
) -> dict[str, Any]:
    run = find_run(client, pool, wanted)
    in_pool = run.get("work_pool_name") or pool
    describer = RunDescriber(client, client.read_pool(in_pool))
    describer.load_deployments([run])
    state = run.get("state") or {}
    explanation = {"why": state.get("message") or ""}
    if run["state_type"] == "SCHEDULED":
        explanation = _explain_scheduled(client, run, in_pool, status)
    elif run["state_type"] in FINAL_STATES and not explanation["why"]:
        explanation = {"why": f"It ended as {state.get('name')}."}
    return {**_identify(describer.describe(run)), "state": state.get("name", ""), **explanation}


def _explain_scheduled(
    client: PrefectClient, run: dict[str, Any], pool: str, status: Status | None
) -> dict[str, Any]:
    """Why a scheduled run is not, or not yet, in the worker's queue."""
    due = parse_time(run.get("next_scheduled_start_time"))
    if due and due > time.time():
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(due))
        remaining = output.format_duration(due - time.time())
        return {"reason": "not_due", "why": f"It is due at {at}, in {remaining}."}
    settings = client.read_pool(pool)
    if settings.get("is_paused"):
        fix = f"Resume it: prefect work-pool resume {pool}"
        return {"reason": "paused", "why": f"Work pool {pool!r} is paused.", "fix": fix}
    if not status and not client.list_workers(pool):
        fix = f"Start one: prefect worker start --pool {pool}"
        return {"reason": "no_worker", "why": f"No worker serves pool {pool!r}.", "fix": fix}
    message = (run.get("state") or {}).get("message")
    if message:
        return {"reason": "", "why": message}
    limit = settings.get("concurrency_limit")
    note = f" The pool runs at most {limit} at a time." if limit is not None else ""
    return {"reason": "", "why": f"It is due, and the worker has not queued it yet.{note}"}
