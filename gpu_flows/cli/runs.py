"""Runs as people name them: by their name, their id, or the beginning of it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from gpu_flows.cli.problem import BadInput
from gpu_flows.cli.server import NotFound, Server

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
RECENT = 1000  # runs of the pool among which the beginning of an id is looked for
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
_BEGINNING = re.compile(r"[0-9a-f-]{4,36}", re.I)


def find(server: Server, pool: str, wanted: str) -> dict[str, Any]:
    """The run of that name (the newest), or else the one whose id begins so. Raises NotFound."""
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
        begun = pick([{**run, "submitted": 0} for run in recent], wanted)
        if begun:
            return begun
    raise NotFound(f"There is no run {wanted!r}.", "`gpu-flows queue --all` lists those that wait or run.")


def pick(jobs: list[dict[str, Any]], wanted: str) -> dict[str, Any] | None:
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
