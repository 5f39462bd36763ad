"""`gpu-flows why RUN`: why a run waits, where it runs, or how it ended."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.table import Table

from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.pool_view import Asks, when
from gpu_flows.cli.prefect_settings import page_of_run
from gpu_flows.cli.problem import Problem
from gpu_flows.cli.runs import FINAL, find, pick
from gpu_flows.cli.server import Server
from gpu_flows.worker.status import Status, read_status

_ATTEMPTS = """
select attempt, outcome, nodes, gpus, policy, started, ended, run_s, lost_s, detail
from attempt_history left join saved_work using (job_id, attempt)
where job_id = $job order by attempt
"""


@parts.examples("gpu-flows why brave-otter", "gpu-flows why 1ae36b2c", "gpu-flows why brave-otter --json")
def why(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's name, its id, or the beginning of its id.")
    ],
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Explain one run: why it waits and what would help, where it runs, or how it ended.

    Of several runs with the same name, the newest.
    """
    status = read_status(pool)
    found = _in_line(status, run) if status else None
    if found is None or _has_ended(found["id"]):
        found = _on_server(Server(), pool, status, found["id"] if found else run)
    found["attempts"] = _attempts(pool, found["id"]) if found.pop("ran", True) else []
    found["ui"] = page_of_run(found["id"])
    if as_json:
        parts.print_json(found)
        return
    times = found.get("preempted")
    shown = {
        **found,
        "devices": ", ".join(found.get("devices") or []),
        "preempted": f"{times} time{'s' if times > 1 else ''}" if times else "",
    }
    order = ["run", "id", "user", "state", "place", "why", "fix", "preempted", "devices", "attempt", "policy"]
    parts.show(parts.lines(*((name, shown.get(name)) for name in [*order, "for", "ui"])))
    if len(found["attempts"]) > 1:
        print()
        parts.show(_drawn(found["attempts"]))


def _attempts(pool: str, job_id: str) -> list[dict[str, Any]]:
    """What the warehouse knows of its launches; nothing, if it cannot be asked now."""
    from gpu_flows.analytics.query_runner import QueryError, run_query
    from gpu_flows.cli.sql import warehouse_of

    try:
        found = run_query(warehouse_of(pool), _ATTEMPTS, {"job": job_id}, timeout_s=5)
    except QueryError:
        return []
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def _drawn(attempts: list[dict[str, Any]]) -> Table:
    columns = ["attempt", "began", "ran", "lost", "GPUs", "on", "ended as", "why"]
    rows = [
        [
            each["attempt"],
            f"{each['started']:%H:%M:%S}",
            parts.duration(each["run_s"]),
            parts.duration(each["lost_s"]) if each["lost_s"] else "",
            each["gpus"],
            ", ".join(json.loads(each["nodes"])),
            each["outcome"] or "running",
            each["detail"] or "",
        ]
        for each in attempts
    ]
    return parts.table(columns, rows, right=("attempt", "ran", "lost", "GPUs"))


def _in_line(status: Status, wanted: str) -> dict[str, Any] | None:
    """What the worker knows of it: it waits or runs right now."""
    job = pick([*status.waiting, *status.running], wanted)
    if job is None:
        return None
    if job in status.waiting:
        return {
            **_who(job),
            "state": "waiting",
            "preempted": job.get("preemptions", 0),
            "ran": bool(job.get("attempts")),
            "place": status.waiting.index(job) + 1,
            "reason": job["reason"],
            "why": job["why"],
            "fix": job["fix"],
            "for": parts.duration(status.at - job["submitted"]),
        }
    return {
        **_who(job),
        "state": "leaving" if job.get("leaving") else "running",
        "ran": job["attempt"] > 1,
        "why": job.get("leaving") or "It has its devices.",
        "devices": job["devices"],
        "attempt": job["attempt"],
        "policy": job["policy"],
        "for": parts.duration(status.at - job["since"]),
    }


def _has_ended(run_id: str) -> bool:
    """The worker's word is up to a second old, and a run tells the server of its end first."""
    with suppress(Problem):
        return Server(timeout_s=3).get(f"/flow_runs/{run_id}")["state_type"] in FINAL
    return False


def _who(job: dict[str, Any]) -> dict[str, Any]:
    return {"run": job["name"], "id": job["id"], "user": job["user"], "gpus": job["gpus"]}


# -- what the server knows --------------------------------------------------------------------


def _on_server(server: Server, pool: str, status: Status | None, wanted: str) -> dict[str, Any]:
    run = find(server, pool, wanted)
    in_pool = run.get("work_pool_name") or pool
    told: dict[str, Any] = {}
    asks = Asks(server, server.pool(in_pool))
    asks.learn([run])
    state = run.get("state") or {}
    if run["state_type"] == "SCHEDULED":
        told = _why_scheduled(server, run, in_pool, status)
    elif run["state_type"] in FINAL:
        told = {"why": state.get("message") or f"It ended as {state.get('name')}."}
    else:
        told = {"why": state.get("message") or ""}
    return {
        **_who(asks.job(run)),
        "state": state.get("name", ""),
        **told,
    }


def _why_scheduled(server: Server, run: dict[str, Any], pool: str, status: Status | None) -> dict[str, Any]:
    """A run that the worker does not (yet) count among the waiting ones."""
    due = when(run.get("next_scheduled_start_time"))
    if due and due > time.time():
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(due))
        return {"reason": "not_due", "why": f"It is due at {at}, in {parts.duration(due - time.time())}."}
    described = server.pool(pool)
    if described.get("is_paused"):
        fix = f"Resume it: prefect work-pool resume {pool}"
        return {"reason": "paused", "why": f"Work pool {pool!r} is paused.", "fix": fix}
    if not status and not server.workers(pool):
        fix = f"Start one: prefect worker start --pool {pool}"
        return {"reason": "no_worker", "why": f"No worker serves pool {pool!r}.", "fix": fix}
    message = (run.get("state") or {}).get("message")
    if message:
        return {"reason": "", "why": message}
    limit = described.get("concurrency_limit")
    held = f" The pool runs at most {limit} at a time." if limit is not None else ""
    return {"reason": "", "why": f"It is due, and the worker has not taken it up yet.{held}"}
