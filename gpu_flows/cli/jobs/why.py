"""`gpu-flows why RUN`: why a run waits, where it runs, or how it ended."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from rich.console import RenderableType

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.jobs.foresight import foresee, show_forecast
from gpu_flows.cli.jobs.pool_jobs import (
    RunDescriber,
    advise_to_serve,
    describe_absence,
    parse_time,
)
from gpu_flows.cli.jobs.runs import RunArgument, find_run, is_suspended, pick_job, shorten
from gpu_flows.cli.jobs.tables import draw_jobs
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.cli.prefect_settings import build_run_url
from gpu_flows.prefect_api.conventions import FINAL_STATES
from gpu_flows.schedulers.model import Tier
from gpu_flows.schedulers.reasons import HELD_BACK, class_of
from gpu_flows.worker.status import Status, read_status
from gpu_flows.worker.status_text import (
    describe_memory,
    describe_progress,
    describe_time,
    measure_wait,
    place_devices,
)

SUSPENDED_WHY = "A user suspended it. It has no devices, and continues after it is resumed."

MOST_RECORDED = 500  # characters of a state's message

# What is shown, in this order, and under which name.
_SHOWN = {
    "run": "run",
    "id": "id",
    "user": "user",
    "state": "state",
    "place": "place",
    "why": "why",
    "fix": "would help",
    "reason": "code",
    "class": "class",
    "waiting_for": "waits for",
    "starts": "starts",
    "ends": "ends",
    "earlier": "would start",
    "no_forecast": "forecast",
    "forecast_was": "forecast",
    "exit_code": "exit code",
    "preempted": "preempted",
    "on": "on",
    "placed": "placed",
    "attempt": "attempt",
    "policy": "policy",
    "memory": "memory",
    "time": "time",
    "peak": "peak GPU memory",
    "waited": "waited",
    "ran": "ran",
    "progress": "progress",
    "ended": "ended",
    "logs": "output",
    "ui": "ui",
}


@examples("gpu-flows why brave-otter", "gpu-flows why 1ae36b2c", "gpu-flows why brave-otter --json")
def why(run: RunArgument, pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Explain one run: why it waits and what would help, where it runs, or how it ended.

    If several runs have the name, the newest is explained. `waited` is the time in the queue, and `ran` the
    time on devices, over all attempts.
    """
    status = read_status(pool)
    found = _explain_by_worker(status, run) if status else None
    if found is None or _has_ended(found["id"]):
        found = _explain_by_server(PrefectClient(), pool, status, found["id"] if found else run)
    if found["state"] == "waiting" and status:
        found |= foresee(pool, found["id"], status)
    _add_record(found, pool)
    found["ui"] = build_run_url(found["id"])
    if as_json:
        output.print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    times = found.get("preempted")
    shown = {
        **found,
        "preempted": f"{times} time{'s' if times > 1 else ''}" if times else "",
        "memory": describe_memory(found.get("memory")),
        "time": describe_time(found.get("time")),
        "peak": f"{found['peak_gpu_memory_mb'] / 1024:.3g} GB" if found.get("peak_gpu_memory_mb") else "",
        "waited": _format(found.get("waited_s")),
        "ran": _format(found.get("ran_s")),
        "progress": describe_progress(found.get("progress")),
        "placed": _describe_placement(found),
        **show_forecast(found),
        "logs": f"gpu-flows logs {shorten(found['id'])}" if found.get("ran_s") or found["attempts"] else "",
    }
    output.show(output.make_value_list(*((label, shown.get(name)) for name, label in _SHOWN.items())))
    if len(found["attempts"]) > 1:
        print()
        output.show(_draw_attempts(found["attempts"]))


def _format(seconds: float | None) -> str:
    return "" if seconds is None else output.format_duration(seconds)


def _describe_placement(found: dict[str, Any]) -> str:
    """How near each other the devices of the last attempt are, of a job with several or one that was offered
    others."""
    last, declined = (found["attempts"] or [{}])[-1], found.get("declined_offers", 0)
    if not last.get("tier") or not (last["gpus"] > 1 or declined):
        return ""
    after = f", after {declined} declined offer{'s' if declined > 1 else ''}" if declined else ""
    return f"{Tier[last['tier'].upper()]}{after}"


def _add_record(found: dict[str, Any], pool: str) -> None:
    """Add what the warehouse knows: the attempts and, of a run that the worker does not have, its times and,
    if it has ended, the figures of its end."""
    if not found.pop("started", True):
        found["attempts"] = []
        return
    from gpu_flows.cli.jobs.records import read_record

    by_server, in_pool = "pool" in found, found.pop("pool", pool)
    record = read_record(in_pool, found["id"])
    found["attempts"] = record.get("attempts", [])
    if record.get("outcome") if "ended" in found else by_server and found["attempts"]:
        found |= {"waited_s": record["waited_s"], "ran_s": record["ran_s"]}
    for name in ("memory", "time", "peak_gpu_memory_mb", "declined_offers", "offer", "forecasts"):
        if record.get(name) and not found.get(name):
            found[name] = record[name]
    if "ended" not in found or not record.get("outcome"):
        return
    found["why"] = _complete_why(found["why"], record["detail"] or "")
    if found["attempts"]:
        last = found["attempts"][-1]
        found |= {"on": last["devices"], "policy": last["policy"], "attempt": last["attempt"]}
        if last["exit_code"] is not None:
            found["exit_code"] = last["exit_code"]
        preemptions = sum(attempt["outcome"] == "preempted" for attempt in found["attempts"])
        found |= {"preempted": preemptions} if preemptions else {}


def _complete_why(message: str, recorded: str) -> str:
    """The message of a run's last state, with what the worker recorded beyond its first line: the worker does
    not replace what a flow reports itself."""
    first_line = message.strip().split("\n")[0][:MOST_RECORDED]
    more = recorded.removeprefix(first_line).strip()
    return f"{message.rstrip()}\n{more}" if more and recorded.startswith(first_line) else message


def _draw_attempts(attempts: list[dict[str, Any]]) -> RenderableType:
    columns = ["attempt", "began", "ran", "lost", "on", "ended as", "why"]
    rows = [
        [
            attempt["attempt"],
            f"{attempt['started'].astimezone():%H:%M:%S}",
            output.format_duration(attempt["run_s"]),
            output.format_duration(attempt["lost_s"]) if attempt["lost_s"] else "",
            attempt["devices"],
            attempt["outcome"] or "running",
            attempt["detail"] or "",
        ]
        for attempt in attempts
    ]
    return draw_jobs(columns, rows, right=("attempt", "ran", "lost"))


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
            "started": bool(job.get("attempts")),
            "place": None if job["reason"] in HELD_BACK else status.waiting.index(job) + 1,
            "reason": job["reason"],
            "class": class_of(job["reason"]),
            "eta": job.get("eta"),
            "why": job["why"],
            "fix": job["fix"],
            "waited_s": round(measure_wait(job, status.at), 1),
            **({"ran_s": round(job["ran"], 1)} if job.get("ran") else {}),
            **({"offer": job["offer"]} if job.get("offer") else {}),
        }
    return {
        **_identify(job),
        "state": "stopping" if job.get("stopping") else "running",
        "started": job["attempt"] > 1,
        "why": job.get("stopping") or "It has its devices.",
        "eta": job.get("eta"),
        "devices": job["devices"],
        "on": place_devices(job["devices"], status.devices),
        "attempt": job["attempt"],
        "policy": job["policy"],
        "waited_s": round(job.get("waited", job["since"] - job["submitted"]), 1),
        "ran_s": round(job.get("ran", status.at - job["since"]), 1),
        **({"progress": job["progress"]} if job.get("progress") else {}),
    }


def _has_ended(run_id: str) -> bool:
    """Whether the server knows the run's end. It learns it first: the status is up to a second old."""
    with suppress(CommandError):
        return PrefectClient(timeout_s=3).get(f"/flow_runs/{run_id}")["state_type"] in FINAL_STATES
    return False


def _identify(job: dict[str, Any]) -> dict[str, Any]:
    needs: dict[str, Any] = {name: job[name] for name in ("memory", "time") if name in job}
    return {"run": job["name"], "id": job["id"], "user": job["user"], "gpus": job["gpus"], **needs}


# -- from the server --------------------------------------------------------------------------


def _explain_by_server(
    client: PrefectClient, pool: str, status: Status | None, wanted: str
) -> dict[str, Any]:
    run = find_run(client, pool, wanted)
    in_pool = run.get("work_pool_name") or pool
    describer = RunDescriber(client, client.read_pool(in_pool))
    describer.load_deployments([run])
    job, state = describer.describe(run), run.get("state") or {}
    found = {**_identify(job), "pool": in_pool, "state": state.get("name", "")}
    if run["state_type"] == "SCHEDULED":
        found["waited_s"] = round(job["waited"], 1)
        explained = _explain_scheduled(client, run, in_pool, status)
        return {**found, **explained, "class": class_of(explained["reason"])}
    if is_suspended(run):
        fix = f"Resume it: gpu-flows resume {shorten(run['id'])}"
        times = _measure_times(run, job, time.time())
        return {
            **found,
            "reason": "suspended",
            "class": class_of("suspended"),
            "why": SUSPENDED_WHY,
            "fix": fix,
            **times,
        }
    if run["state_type"] not in FINAL_STATES:
        return {**found, "why": state.get("message") or "", **_measure_times(run, job, time.time())}
    return {**found, **_explain_end(run, job)}


def _explain_end(run: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """How a run ended, as far as the server knows."""
    state = run.get("state") or {}
    ended = parse_time(run.get("end_time")) or parse_time(state.get("timestamp")) or time.time()
    return {
        "why": state.get("message") or f"It ended as {state.get('name')}.",
        **_measure_times(run, job, ended),
        "ended": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended)),
    }


def _measure_times(run: dict[str, Any], job: dict[str, Any], until: float) -> dict[str, Any]:
    """How long a run waited and ran, by the server's clock. It counts a launch as waiting."""
    ran_s = float(run.get("estimated_run_time") or run.get("total_run_time") or 0.0)
    return {"waited_s": round(max(0.0, until - job["submitted"] - ran_s), 1), "ran_s": round(ran_s, 1)}


def _explain_scheduled(
    client: PrefectClient, run: dict[str, Any], pool: str, status: Status | None
) -> dict[str, Any]:
    """Why a scheduled run is not, or not yet, in the worker's queue."""
    due = parse_time(run.get("next_scheduled_start_time"))
    if due and due > time.time():
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(due))
        remaining = output.format_duration(due - time.time())
        return {"reason": "not_due", "why": f"It is due at {at}, in {remaining}.", "waited_s": None}
    settings = client.read_pool(pool)
    if settings.get("is_paused"):
        fix = f"Resume it: prefect work-pool resume {pool}"
        return {"reason": "paused", "why": f"Work pool {pool!r} is paused.", "fix": fix}
    if not status and not client.list_workers(pool):
        return {"reason": "no_worker", "why": describe_absence(pool), "fix": advise_to_serve(pool)}
    if (run.get("job_variables") or {}).get("hold"):
        fix = f"Release it: gpu-flows release {shorten(run['id'])}"
        return {"reason": "held", "why": "It is held.", "fix": fix}
    message = (run.get("state") or {}).get("message")
    if message:
        return {"reason": "", "why": message}
    return {"reason": "", "why": "It is due, and the worker has not queued it yet."}
