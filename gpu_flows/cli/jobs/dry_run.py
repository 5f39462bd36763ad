"""`gpu-flows submit --dry-run`: where and when jobs would start, without submitting them.

The worker builds the jobs as it would build the real ones; they are then put into the last state of the pool,
which is simulated forward here. Nothing is written, neither on the server nor on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.jobs.creation import describe_run, explain_refusal
from gpu_flows.cli.jobs.etas import describe_alternative, describe_eta, describe_holders
from gpu_flows.cli.jobs.pool_jobs import advise_to_serve
from gpu_flows.cli.jobs.requests import JobRequest
from gpu_flows.cli.jobs.tables import draw_jobs
from gpu_flows.config.paths import pool_folder
from gpu_flows.schedulers.reasons import class_of
from gpu_flows.worker.command_socket import NoAnswer, ask_worker
from gpu_flows.worker.status import Status, read_status
from gpu_flows.worker.status_text import place_devices

if TYPE_CHECKING:
    from gpu_flows.forecasting.imagined import ImaginedJob
    from gpu_flows.schedulers.forecast.pool_state import PoolState

FORECAST_S, ALTERNATIVES_S = 0.2, 0.2
GIVE_UP_S = 1.0  # a simulation that takes longer is not completed
TOO_FAR = f"Its start is too far away to be foreseen in {GIVE_UP_S:g} s."
MOST_LOOKED_AT = 20  # jobs of which it is told where they start, and what would help


def foresee_runs(
    pool: str, deployment: dict[str, Any], requests: Sequence[JobRequest], user: str
) -> list[dict[str, Any]]:
    """What would become of each request. Raises CommandError if no worker of this machine can tell."""
    from gpu_flows.forecasting.imagined import IMAGINED  # imports pydantic
    from gpu_flows.forecasting.state_file import read_present_state

    status, folder = read_status(pool), pool_folder(pool)
    if status is None:
        raise CommandError(
            f"No worker on this machine serves pool {pool!r}, and only the worker knows its state.",
            f"Use --dry-run on the worker's machine. {advise_to_serve(pool)}",
        )
    described = [_describe_request(deployment, request, user) for request in requests]
    try:
        answer = ask_worker(folder, {"deployment_id": deployment["id"], "requests": described})
    except NoAnswer as error:
        raise CommandError(f"The worker of pool {pool!r} does not answer: {error}.", "Try again.") from None
    if "error" in answer:
        raise CommandError(answer["error"])
    imagined, state = IMAGINED.validate_python(answer["jobs"]), read_present_state(folder)
    if state is None:
        raise CommandError(
            f"The state of pool {pool!r} is not known yet.", "Its worker has just started: try again."
        )
    return _foresee(state, status, imagined, requests)


def _describe_request(deployment: dict[str, Any], request: JobRequest, user: str) -> dict[str, Any]:
    run = describe_run(deployment, request, user)
    variables, parameters, tags = run["job_variables"], run["parameters"], run["tags"]
    return {"parameters": parameters, "variables": variables, "name": request.name, "tags": tags}


def _foresee(
    state: PoolState, status: Status, imagined: list[ImaginedJob], requests: Sequence[JobRequest]
) -> list[dict[str, Any]]:
    """Put the jobs that would be accepted into the state, together, and simulate it forward."""
    from gpu_flows.schedulers.forecast.forward import UnknownDurations
    from gpu_flows.schedulers.policy import PolicyError

    for each in imagined:
        if each.job:
            state = state.with_job(each.job, each.duration)
    ids = [each.job.id for each in imagined if each.job]
    foreseen: dict[str, dict[str, Any]] = {}
    no_forecast = ""
    try:
        foreseen = _simulate(state, status, ids) if ids else {}
    except (UnknownDurations, PolicyError) as error:
        no_forecast = str(error)
    found = []
    for each, request in zip(imagined, requests, strict=True):
        known = _describe(each, request)
        if each.job:
            future = foreseen.get(each.job.id, {"eta": None})
            is_far = not no_forecast and future["eta"] is None
            known |= {**future, "no_forecast": TOO_FAR if is_far else no_forecast}
        found.append(known)
    return found


def _simulate(state: PoolState, status: Status, ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return when each job would start and end; of the first ones also where, their places in the queue, what
    they wait for and what would help. Raises UnknownDurations and PolicyError."""
    from gpu_flows.forecasting.prospects import describe_outlook
    from gpu_flows.schedulers.forecast.alternatives import find_places, look_ahead_together
    from gpu_flows.schedulers.forecast.eta import forecast

    is_late, is_hopeless = _after(FORECAST_S), _after(GIVE_UP_S)
    etas = forecast(state, is_late=is_late, is_hopeless=is_hopeless, only=ids)
    found: dict[str, dict[str, Any]] = {
        job_id: {"eta": asdict(etas[job_id]) if job_id in etas else None} for job_id in ids
    }
    first = ids[:MOST_LOOKED_AT]
    outlooks = look_ahead_together(state, first, is_hopeless)
    must_wait = any(outlook.start > state.now for outlook in outlooks.values())
    places = find_places(state) if must_wait and not is_hopeless() else {}
    is_late = _after(ALTERNATIVES_S)
    for job_id in first:
        prospects = describe_outlook(state, job_id, outlooks.get(job_id), is_late)
        found[job_id] |= {
            "position": None if prospects["starts_now"] else places.get(job_id),
            "on": place_devices(prospects["devices"], status.devices),
            **prospects,
        }
    return found


def _after(seconds: float) -> Callable[[], bool]:
    """Return what tells whether so many seconds have passed since now."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


def _describe(imagined: ImaginedJob, request: JobRequest) -> dict[str, Any]:
    why = (explain_refusal(imagined.why, request) if imagined.code == "bad_request" else "") or imagined.why
    job = imagined.job
    return {
        "run": job.name if job else request.name,
        "refused": job is None,
        "code": imagined.code,
        "class": class_of(imagined.code) if imagined.code else "",
        "why": why,
        "fix": imagined.fix,
        "gpus": job.gpus if job else None,
        "memory_mb": job.memory_mb if job else None,
        "expected_s": imagined.duration.value if imagined.duration else None,
    }


def show_dry_run(found: list[dict[str, Any]], as_json: bool, is_list: bool) -> None:
    if as_json:
        output.print_json(found if is_list else found[0])
    elif is_list:
        rows = [[each["run"], *_summarize(each), _note(each)] for each in found]
        output.show(draw_jobs(["run", "would start", "would end", "on", "remark"], rows))
    else:
        output.show(output.make_value_list(*_list_lines(found[0]).items()))
    if not as_json:
        output.print_remark("Nothing was submitted (--dry-run).")


def _list_lines(each: dict[str, Any]) -> dict[str, Any]:
    now = time.time()
    alternatives = "; ".join(describe_alternative(one, now) for one in each.get("alternatives", [])[:4])
    return {
        "run": each["run"],
        "would start": _describe_start(each),
        "would end": describe_eta(each.get("eta"), "end"),
        "on": each.get("on"),
        "place": each.get("position"),
        "waits for": describe_holders(each.get("waits_for", []), now),
        "earlier": alternatives,
        "code": each["code"],
        "remark": _note(each),
    }


def _summarize(each: dict[str, Any]) -> tuple[str, str, str]:
    return _describe_start(each), describe_eta(each.get("eta"), "end"), each.get("on") or ""


def _describe_start(each: dict[str, Any]) -> str:
    if each["refused"]:
        return "never: it would be refused"
    if each.get("starts_now"):
        return "now"
    return describe_eta(each.get("eta"), "start") or "not known"


def _note(each: dict[str, Any]) -> str:
    held = "If it could enter the queue now; but: " if each["why"] and not each["refused"] else ""
    return " ".join(filter(None, (f"{held}{each['why']}", each["fix"], each.get("no_forecast", "")))).strip()
