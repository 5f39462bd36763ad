"""Finding a run by its name, its id, or the beginning of its id; and changing one that waits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

import typer

from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.prefect_client import NotFound, PrefectClient
from gpu_flows.prefect_api.conventions import PAGE
from gpu_flows.prefect_api.run_edits import build_edit_event

RECENT = 1000  # the pool's newest runs, among which the beginning of an id is searched
SHORT_ID = 8
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
_ID_PREFIX = re.compile(r"[0-9a-f-]{4,36}", re.I)

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's name, its id, or the beginning of its id.")
]


def shorten(run_id: str) -> str:
    """The beginning of an id, as tables show it. Every command accepts it."""
    return run_id[:SHORT_ID]


def name_run(run: dict[str, Any]) -> str:
    """`brave-otter (1ae36b2c)`."""
    return f"{run['name']} ({shorten(run['id'])})"


def is_suspended(run: dict[str, Any]) -> bool:
    """Whether the run has stopped, or is to, until someone resumes it. One that is only paused waits in its
    process."""
    details = (run.get("state") or {}).get("state_details") or {}
    return run["state_type"] == "PAUSED" and bool(details.get("pause_reschedule"))


def find_run(client: PrefectClient, pool: str, wanted: str) -> dict[str, Any]:
    """The newest run of that name, or else the run whose id begins so. Raises NotFound."""
    newest = "EXPECTED_START_TIME_DESC"
    if _ID.fullmatch(wanted):
        with suppress(NotFound):
            return dict(client.get(f"/flow_runs/{wanted}"))
    named = client.post(
        "/flow_runs/filter", {"flow_runs": {"name": {"any_": [wanted]}}, "sort": newest, "limit": 1}
    )
    if named:
        return dict(named[0])
    if _ID_PREFIX.fullmatch(wanted):
        in_pool = {"name": {"any_": [pool]}}
        recent = list(client.fetch_all("/flow_runs/filter", RECENT, work_pools=in_pool, sort=newest))
        found = pick_job([{**run, "submitted": 0} for run in recent], wanted)
        if found:
            return found
    raise NotFound(
        f"There is no run {wanted!r}.",
        "`gpu-flows queue --all` lists the waiting and the running runs, `gpu-flows history` also the ended.",
    )


def find_array(client: PrefectClient, pool: str, name: str) -> list[dict[str, Any]]:
    """The jobs NAME[...] of an array or a sweep, the newest of each name; none if there is no such array."""
    which = {"name": {"like_": f"{name}["}}
    in_pool, oldest_first = {"name": {"any_": [pool]}}, "EXPECTED_START_TIME_ASC"
    runs = client.fetch_all("/flow_runs/filter", flow_runs=which, work_pools=in_pool, sort=oldest_first)
    return list({run["name"]: run for run in runs if run["name"].startswith(f"{name}[")}.values())


def pick_job(jobs: list[dict[str, Any]], wanted: str) -> dict[str, Any] | None:
    """The newest of these jobs with that name, or else the one whose id begins so."""
    named = [job for job in jobs if job["name"] == wanted]
    if named:
        return max(named, key=lambda job: job["submitted"])
    if not _ID_PREFIX.fullmatch(wanted):
        return None
    found = [job for job in jobs if job["id"].startswith(wanted.lower())]
    if len(found) > 1:
        several = ", ".join(job["id"] for job in found[:5])
        raise BadInput(f"{len(found)} runs begin with {wanted}: {several}.", "Give more of the id.")
    return found[0] if found else None


def read_runs(client: PrefectClient, run_ids: Iterable[str]) -> list[dict[str, Any]]:
    """The runs with these ids, in few requests."""
    ids = list(run_ids)
    runs: list[dict[str, Any]] = []
    for start in range(0, len(ids), PAGE):
        some = {"id": {"any_": ids[start : start + PAGE]}}
        runs += client.fetch_all("/flow_runs/filter", flow_runs=some)
    return runs


def change_waiting_run(client: PrefectClient, run: dict[str, Any], **variables: Any) -> None:
    """Set job variables of a run that waits. The worker reads them again and queues the job anew."""
    if run["state_type"] != "SCHEDULED":
        state = (run.get("state") or {}).get("name") or run["state_type"].capitalize()
        raise CommandError(
            f"{name_run(run)} is {state}. Only a waiting job can be changed.",
            f"`gpu-flows why {shorten(run['id'])}` explains its state.",
        )
    client.patch(
        f"/flow_runs/{run['id']}", {"job_variables": {**(run.get("job_variables") or {}), **variables}}
    )
    if run.get("work_pool_id"):
        with suppress(CommandError):  # without the event, the worker notices the change at its next poll
            client.post("/events", [build_edit_event(run["id"], run["work_pool_id"])])
