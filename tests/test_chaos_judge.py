"""The judgement of the chaos cases: each kind of fault is counted."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from random import Random
from typing import Any, cast
from uuid import uuid4

import pytest
from chaos.workload import Interval, Workload, count_overlaps, count_rivals
from live import Pool


class PaperPool:
    """A pool that runs each job at once, and says of it what the test wants."""

    def __init__(self, starts: int = 1, state: str = "COMPLETED", facts: int = 1) -> None:
        self.starts, self.state, self.facts = starts, state, facts
        self._runs: list[str] = []

    def command(self, command: str, **_: Any) -> str:
        run = str(uuid4())  # another test may run at the same time; leaked processes are found by this name
        self._runs.append(run)
        for attempt in range(1, self.starts + 1):
            env = {"GPU_FLOWS_ATTEMPT": f"{run}.{attempt}", "CUDA_VISIBLE_DEVICES": f"device-of-{run}"}
            subprocess.run(shlex.split(command), env={"PATH": "/usr/bin:/bin", **env}, check=False)
        return run

    def post(self, _: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"id": id, "state": {"type": self.state}} for id in body["flow_runs"]["id"]["any_"]]

    def sql(self, _: str) -> list[tuple[str, int]]:
        return [(run, self.facts) for run in self._runs] if self.facts else []


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.workload.wait_until", lambda look, *_: look())


@pytest.mark.parametrize(
    ("pool", "code", "faults"),
    [
        (PaperPool(), 0, {}),
        (PaperPool(state="FAILED"), 3, {}),
        (PaperPool(state="CRASHED"), 0, {"untrue": 2}),
        (PaperPool(state="COMPLETED"), 3, {"untrue": 2}),
        (PaperPool(starts=0), 0, {"untrue": 2}),
        (PaperPool(starts=2), 0, {"doubled": 2}),
        (PaperPool(state="SCHEDULED", starts=0), 0, {"lost": 2}),
        (PaperPool(state="RUNNING"), 0, {"stuck": 2}),
        (PaperPool(facts=0), 0, {"missing": 2}),
        (PaperPool(facts=2), 0, {"missing": 2}),
    ],
)
def test_each_fault_is_counted(pool: PaperPool, code: int, faults: dict[str, int], tmp_path: Path) -> None:
    load = Workload(cast(Pool, pool), tmp_path / "journal", Random(0))
    load.add(2, seconds=0.0, code=code)
    assert load.judge().faults() == faults


def test_jobs_on_the_same_device_at_the_same_time_overlap() -> None:
    def held(device: str, start: float, end: float) -> Interval:
        return Interval("run.1", (device,), start, end, True)

    assert count_overlaps([held("a", 0, 2), held("a", 2, 3), held("b", 0, 3)]) == 0
    assert count_overlaps([held("a", 0, 2), held("a", 1, 3)]) == 1
    assert count_overlaps([held("a", 0, 2), held("a", 1, 1)]) == 1, "one that started and did not end"


def test_a_start_under_an_old_lease_is_a_rival_of_the_new_one() -> None:
    assert count_rivals([1, 1, 2, 2, 4]) == 0
    assert count_rivals([1, 2, 1, 2, 1]) == 2
