"""Finding a run by its name, its id, or the beginning of its id."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.prefect_client import NotFound, PrefectClient

FINAL_STATES = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
RECENT = 1000  # the pool's newest runs, among which the beginning of an id is searched
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
_ID_PREFIX = re.compile(r"[0-9a-f-]{4,36}", re.I)


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
        f"There is no run {wanted!r}.", "`gpu-flows queue --all` lists the waiting and the running ones."
    )


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
