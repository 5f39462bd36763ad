"""Histories for tests: records facts and queries them, with times in seconds after T."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
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
    """A warehouse whose facts are recorded by what happens to jobs and devices."""

    def __init__(self, folder: Path) -> None:
        self.database = copy_empty_warehouse(folder)
        self._recorder = Recorder(self.database, folder / "spool", keep_samples=timedelta(hours=3))

    def record(self, *facts: Fact) -> None:
        self._recorder.write(*facts)

    def age_samples(self, now: float) -> None:
        """Roll up and delete samples, as a worker would have done until now."""
        while self.age_once(now):
            pass

    def age_once(self, now: float) -> bool:
        """Make one transaction of this. Returns whether there may be more to do."""
        assert self._recorder.drain(), self._recorder.trouble
        return self._recorder.age_samples(datetime.fromtimestamp(T + now, UTC))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(sql).fetchall()

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Open the warehouse for reading, with everything in it that was recorded."""
        assert self._recorder.drain(), self._recorder.trouble
        return duckdb.connect(str(self.database), read_only=True)

    def job(self, job_id: str, submitted: float, *, pool: str = "pool", experiment: str = "") -> None:
        self.record(
            JobSubmitted(
                job_id, pool, job_id, "f", "d", "ann", "[]", 1, 0, 0, None, None, T + submitted, experiment
            )
        )

    def start(self, job_id: str, at: float, *devices: str, attempt: int = 1, policy: str = "fifo") -> None:
        self.record(
            AttemptStarted(job_id, attempt, policy, "process", '["n0"]', T + at, T + at),
            *(Allocated(job_id, attempt, device, "n0", 0, T + at) for device in devices),
        )

    def stop(self, job_id: str, at: float, attempt: int = 1, outcome: str = "completed") -> None:
        self.record(AttemptEnded(job_id, attempt, T + at, outcome, 0))

    def end(self, job_id: str, at: float, outcome: str = "completed") -> None:
        self.record(JobEnded(job_id, T + at, outcome))

    def run(
        self, job_id: str, submitted: float, started: float, ended: float, *devices: str, **more: Any
    ) -> None:
        """Record a job that ran once, from its submission to its end."""
        self.job(job_id, submitted, **{k: v for k, v in more.items() if k in ("pool", "experiment")})
        self.start(job_id, started, *devices, **{k: v for k, v in more.items() if k == "policy"})
        self.stop(job_id, ended)
        self.end(job_id, ended)

    def device(self, device_id: str, at: float = 0, node: str = "n0", pool: str = "pool") -> None:
        self.record(DeviceSeen(device_id, pool, node, 0, "GTX", 11_000, T + at))

    def health(self, device_id: str, at: float, kind: str) -> None:
        self.record(DeviceEvent(T + at, device_id, "n0", kind))

    def sample(self, device_id: str, *readings: tuple[float, float | None]) -> None:
        self.record(*(Sampled(T + at, device_id, value, None, None, None) for at, value in readings))

    def swap(self, at: float, before: str, after: str, error: str = "") -> None:
        self.record(Swapped(T + at, "pool", before, after, "{}", error))


def copy_empty_warehouse(folder: Path) -> Path:
    """Copy an empty warehouse to the folder. Creating its views would take longer than most tests."""
    return Path(shutil.copy(Path(_empty_warehouse().name, "warehouse.duckdb"), folder))


@cache
def _empty_warehouse() -> TemporaryDirectory[str]:
    folder = TemporaryDirectory(prefix="gpu-flows-empty-warehouse-")
    Recorder(Path(folder.name, "warehouse.duckdb"), Path(folder.name, "spool")).close()
    return folder
