"""`gpu-flows why RUN`: why a run waits, where it runs, or how it ended."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import Annotated, Any

import typer

from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.pool_view import Asks, when
from gpu_flows.cli.prefect_settings import page_of_run
from gpu_flows.cli.problem import BadInput, Problem
from gpu_flows.cli.server import NotFound, Server
from gpu_flows.status import Status, read_status

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
RECENT = 1000  # runs of the pool among which the beginning of an id is looked for
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
_BEGINNING = re.compile(r"[0-9a-f-]{4,36}", re.I)


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
    found["ui"] = page_of_run(found["id"])
    if as_json:
        parts.print_json(found)
        return
    shown = {**found, "devices": ", ".join(found.get("devices") or [])}
    order = ["run", "id", "user", "state", "place", "why", "fix", "devices", "attempt", "policy", "for", "ui"]
    parts.show(parts.lines(*((name, shown.get(name)) for name in order)))


def _in_line(status: Status, wanted: str) -> dict[str, Any] | None:
    """What the worker knows of it: it waits or runs right now."""
    job = _pick([*status.waiting, *status.running], wanted)
    if job is None:
        return None
    if job in status.waiting:
        return {
            **_who(job),
            "state": "waiting",
            "place": status.waiting.index(job) + 1,
            "reason": job["reason"],
            "why": job["why"],
            "fix": job["fix"],
            "for": parts.duration(status.at - job["submitted"]),
        }
    return {
        **_who(job),
        "state": "running",
        "why": "It has its devices.",
        "devices": job["devices"],
        "attempt": job["attempt"],
        "policy": job["policy"],
        "for": parts.duration(status.at - job["since"]),
    }


def _pick(jobs: list[dict[str, Any]], wanted: str) -> dict[str, Any] | None:
    """The job of that name (the newest), or else the one whose id begins so."""
    named = [job for job in jobs if job["name"] == wanted]
    if named:
        return max(named, key=lambda job: job["submitted"])
    if not _BEGINNING.fullmatch(wanted):
        return None
    begun = [job for job in jobs if job["id"].startswith(wanted.lower())]
    if len(begun) > 1:
        several = ", ".join(job["id"] for job in begun[:5])
        raise BadInput(f"{len(begun)} runs begin with {wanted}: {several}.", "Give more of the id.")
    return begun[0] if begun else None


def _has_ended(run_id: str) -> bool:
    """The worker's word is up to a second old, and a run tells the server of its end first."""
    with suppress(Problem):
        return Server(timeout_s=3).get(f"/flow_runs/{run_id}")["state_type"] in FINAL
    return False


def _who(job: dict[str, Any]) -> dict[str, Any]:
    return {"run": job["name"], "id": job["id"], "user": job["user"], "gpus": job["gpus"]}


# -- what the server knows --------------------------------------------------------------------


def _on_server(server: Server, pool: str, status: Status | None, wanted: str) -> dict[str, Any]:
    run = _find(server, pool, wanted)
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


def _find(server: Server, pool: str, wanted: str) -> dict[str, Any]:
    newest = "EXPECTED_START_TIME_DESC"
    if _ID.fullmatch(wanted):
        with suppress(NotFound):
            return dict(server.get(f"/flow_runs/{wanted}"))
    named = server.post(
        "/flow_runs/filter", {"flow_runs": {"name": {"any_": [wanted]}}, "sort": newest, "limit": 1}
    )
    if named:
        return dict(named[0])
    if _BEGINNING.fullmatch(wanted):
        in_pool = {"name": {"any_": [pool]}}
        recent = list(server.page("/flow_runs/filter", RECENT, work_pools=in_pool, sort=newest))
        begun = _pick([{**run, "submitted": 0} for run in recent], wanted)
        if begun:
            return begun
    raise NotFound(f"There is no run {wanted!r}.", "`gpu-flows queue --all` lists those that wait or run.")


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
