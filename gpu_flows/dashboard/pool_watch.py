"""Reads the status that the worker of a pool writes on this machine, whenever it has changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_flows.common.quantities import format_duration
from gpu_flows.config.paths import pool_folder
from gpu_flows.schedulers.reasons import HELD_BACK
from gpu_flows.worker.status import Status, read_last_status, status_path
from gpu_flows.worker.status_text import LATE_S

AGE_STEP_S = 5.0  # how often the age of an old status is shown anew


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pool as its worker last described it. `version` differs if anything differs that a page shows."""

    pool: str
    status: Status | None
    version: str

    @property
    def policy(self) -> dict[str, Any]:
        return self.status.policy if self.status else _POLICY

    @property
    def waiting(self) -> list[dict[str, Any]]:
        return self.status.waiting if self.status else []

    @property
    def waiting_by_reason(self) -> dict[str, int]:
        """How many jobs wait for each reason, also those that are not listed."""
        return self.status.waiting_by_reason if self.status else {}

    @property
    def waiting_count(self) -> int:
        return sum(self.waiting_by_reason.values())

    @property
    def running(self) -> list[dict[str, Any]]:
        return self.status.running if self.status else []

    @property
    def devices(self) -> list[dict[str, Any]]:
        return self.status.devices if self.status else []

    @property
    def now(self) -> float:
        """The time for which the status holds."""
        return self.status.at if self.status else time.time()

    def absence(self) -> tuple[str, str]:
        """Return that no worker describes the pool now, and what to do; empty if one does."""
        start = f"prefect worker start --pool {self.pool}"
        if self.status is None:
            return f"No worker has served pool {self.pool} on this machine.", f"Start one: {start}"
        if not self.status.leads and time.time() - self.status.at < LATE_S:
            return (
                f"Worker {self.status.worker} stands by: another machine's worker serves pool {self.pool}.",
                "Run gpu-flows dashboard on that machine.",
            )
        age = time.time() - self.status.at
        if age < LATE_S:
            return "", ""
        return (
            f"This is {format_duration(age)} old: worker {self.status.worker} has not reported since, and no"
            " job starts until a worker does.",
            f"If it has stopped, start it again: {start}",
        )


class PoolWatch:
    """Keeps the last status of a pool, and the place of its jobs."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._changed = -1
        self._status: Status | None = None

    def look(self) -> Snapshot:
        """Return the pool as the worker has last described it."""
        changed = _time_of_change(status_path(self.pool))
        if changed != self._changed:
            self._status = read_last_status(self.pool)
            self._changed = changed
            if self._status:
                complete(self._status)
        age = time.time() - self._status.at if self._status else 0.0
        steps = int(age / AGE_STEP_S) if age >= LATE_S else 0
        return Snapshot(self.pool, self._status, f"{changed:x}.{steps:x}")

    @property
    def folder(self) -> Path:
        """The folder with the state of the pool, from which a simulation can continue."""
        return pool_folder(self.pool)


# What entries of a status may lack: their worker is of another version, or does not know it.
_POLICY: dict[str, Any] = {
    **{"name": "", "options": {}, "serving": "", "error": "", "remark": "", "saved": None},
    **{"shadows": [], "shadows_error": ""},
}
_JOB = {"name": "", "user": "", "gpus": 0, "priority": 0, "eta": None, "memory": None, "time": None}
_WAITING = {**_JOB, "alternatives": [], "reason": "", "why": "", "fix": "", "attempts": 0, "preemptions": 0}
_RUNNING = {**_JOB, "stopping": "", "progress": None, "ran": None, "attempt": 1, "nodes": (), "policy": ""}


def complete(status: Status) -> None:
    """Give every entry all its fields, and each waiting job its position: those that may not start yet have
    none."""
    for entries, defaults in (
        ([status.policy], _POLICY),
        (status.waiting, _WAITING),
        (status.running, _RUNNING),
    ):
        for entry in entries:
            entry |= {name: value for name, value in defaults.items() if name not in entry}
    for place, job in enumerate(status.waiting, 1):
        job["position"] = None if job["reason"] in HELD_BACK else place


def _time_of_change(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
