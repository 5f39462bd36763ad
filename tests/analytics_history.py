"""Histories for tests: facts in, answers out, with times in seconds after T."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptStarted,
    DeviceEvent,
    DeviceSeen,
    Fact,
    JobEnded,
    JobSubmitted,
    Sampled,
    Swapped,
)
from gpu_flows.analytics.recorder import Recorder

T = 1_700_000_040.0  # a full minute


class History:
    """One warehouse, told in the words of a scheduler."""

    def __init__(self, folder: Path) -> None:
        self._database = folder / "warehouse.duckdb"
        self._recorder = Recorder(self._database, folder / "spool")

    def tell(self, *facts: Fact) -> None:
        self._recorder.write(*facts)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        assert self._recorder.drain(), self._recorder.trouble
        with duckdb.connect(str(self._database), read_only=True) as connection:
            return connection.execute(sql).fetchall()

    def job(self, job_id: str, submitted: float, *, pool: str = "pool", experiment: str = "") -> None:
        self.tell(
            JobSubmitted(
                job_id, pool, job_id, "f", "d", "ann", "[]", 1, 0, 0, None, None, T + submitted, experiment
            )
        )

    def start(self, job_id: str, at: float, *devices: str, attempt: int = 1, policy: str = "fifo") -> None:
        self.tell(
            AttemptStarted(job_id, attempt, policy, "process", '["n0"]', T + at, T + at),
            *(Allocated(job_id, attempt, device, "n0", 0, T + at) for device in devices),
        )

    def stop(self, job_id: str, at: float, attempt: int = 1, outcome: str = "completed") -> None:
        self.tell(AttemptEnded(job_id, attempt, T + at, outcome, 0))

    def end(self, job_id: str, at: float, outcome: str = "completed") -> None:
        self.tell(JobEnded(job_id, T + at, outcome))

    def run(
        self, job_id: str, submitted: float, started: float, ended: float, *devices: str, **more: Any
    ) -> None:
        """A job that ran once, from beginning to end."""
        self.job(job_id, submitted, **{k: v for k, v in more.items() if k in ("pool", "experiment")})
        self.start(job_id, started, *devices, **{k: v for k, v in more.items() if k == "policy"})
        self.stop(job_id, ended)
        self.end(job_id, ended)

    def device(self, device_id: str, at: float = 0, node: str = "n0", pool: str = "pool") -> None:
        self.tell(DeviceSeen(device_id, pool, node, 0, "GTX", 11_000, T + at))

    def health(self, device_id: str, at: float, kind: str) -> None:
        self.tell(DeviceEvent(T + at, device_id, "n0", kind))

    def sample(self, device_id: str, *readings: tuple[float, float | None]) -> None:
        self.tell(*(Sampled(T + at, device_id, value, None, None, None) for at, value in readings))

    def swap(self, at: float, before: str, after: str, error: str = "") -> None:
        self.tell(Swapped(T + at, "pool", before, after, "{}", error))


def make_empty_warehouse(folder: Path) -> Path:
    """Made once and copied, since making thirty views takes longer than most tests."""
    Recorder(folder / "warehouse.duckdb", folder / "spool").close()
    return folder / "warehouse.duckdb"
