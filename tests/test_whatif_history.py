"""What if, on histories of a live pool: launches, stops, outages, retries, and what cannot be replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from analytics_history import History, T

from gpu_flows.analytics import recorded_trace
from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    DeviceSeen,
    JobQueued,
    ProtectionSet,
    SavedWork,
    Swapped,
)
from gpu_flows.analytics.whatif import Choice, NoRecord, Scenario, WhatIf, replay
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import PolicyError


class LiveHistory(History):
    """Jobs of a live pool, with what it takes to launch, release and stop them."""

    def pool(self, *devices: str, policy: str = "fifo") -> None:
        self.record(Swapped(T, "pool", "", policy, "{}"), ProtectionSet(T, "pool", 5.0, 0))
        for index, device in enumerate(devices):
            self.record(DeviceSeen(device, "pool", "n0", index, "GTX", 11_000, T))

    def queued(self, job_id: str, submitted: float, at: float, **asks: Any) -> None:
        self.job(job_id, submitted)
        self.record(JobQueued.of(Job(job_id, **asks), job_id, T + at))

    def attempt(
        self,
        job_id: str,
        times: tuple[float, float, float, float],
        device: str,
        number: int = 1,
        outcome: str = "completed",
    ) -> None:
        planned, started, ended, released = (T + at for at in times)
        self.record(
            AttemptStarted(job_id, number, "fifo", "process", '["n0"]', planned, started),
            Allocated(job_id, number, device, "n0", 0, started),
            AttemptEnded(job_id, number, ended, outcome, 0, released=released),
        )


@pytest.fixture
def history(tmp_path: Path) -> LiveHistory:
    return LiveHistory(tmp_path)


def replay_history(history: LiveHistory, tmp_path: Path, **choices: Any) -> WhatIf:
    history.query("select 1")  # drained
    return replay(tmp_path / "warehouse.duckdb", **choices)


def ends(scenario: Scenario) -> dict[str, float | None]:
    return {job.job_id: None if job.ended is None else round(job.ended - T, 3) for job in scenario.jobs}


def test_launch_and_release_take_their_time(history: LiveHistory, tmp_path: Path) -> None:
    history.pool("g0")
    for number, job_id in enumerate("abc"):
        history.queued(job_id, 1, 1.5 + number / 10)
        began = 1.5 + 10 * number
        history.attempt(job_id, (began, began + 0.5, began + 9.5, began + 10), "g0")
        history.end(job_id, began + 9.5)
    found = replay_history(history, tmp_path)
    assert ends(found.recorded) == {"a": 11, "b": 21, "c": 31}
    assert ends(found.replayed) == ends(found.recorded)
    assert found.replayed.figures.avg_queueing_s == pytest.approx(found.recorded.figures.avg_queueing_s)
    assert "Launching a job takes 0.5 s (median of 3; each job's own where it was launched)." in found.known


def test_a_stop_takes_its_time(history: LiveHistory, tmp_path: Path) -> None:
    """A job that is preempted is back after 2 s, and its successor starts only when it is gone."""
    history.pool("g0", policy="priority")
    history.queued("low", 0, 0)
    history.attempt("low", (0, 1, 12, 12), "g0", outcome="preempted")
    history.record(
        AttemptInterrupted("low", 1, T + 10, T + 12, "preempted", "priority", '["high"]', T + 13),
        SavedWork("low", 1, 1, 1.0, 1, T + 12, 1, None, None, None, 0.0),
    )
    history.queued("high", 10, 10)
    history.attempt("high", (10, 13, 23, 23), "g0")
    history.end("high", 23)
    history.attempt("low", (23, 24, 40, 40), "g0", number=2)
    history.record(SavedWork("low", 2, 0, 0.0, 0, None, 1, T + 25, 1.0, 1, 0.0))
    history.end("low", 40)
    # their priorities
    history.query("select 1")
    _set_priority(tmp_path / "warehouse.duckdb", "high", 5)
    found = replay_history(history, tmp_path)
    assert ends(found.recorded) == {"low": 40, "high": 23}
    assert ends(found.replayed) == ends(found.recorded)
    assert found.replayed.figures.preemptions == 1
    assert {"Stopping a job takes 2 s (median of 1).", "Loading a checkpoint takes 1 s (median of 1)."} < set(
        found.known
    )


def _set_priority(database: Path, job_id: str, priority: int) -> None:
    with duckdb.connect(str(database)) as connection:
        connection.execute("update jobs set priority = ? where job_id = ?", [priority, job_id])


def test_protection_holds_in_the_replay(history: LiveHistory, tmp_path: Path) -> None:
    """The urgent job would stop the other at once, but that one is protected for its first five seconds."""
    history.pool("g0")
    for job_id, at in (("low", 0.0), ("high", 2.0)):
        history.queued(job_id, at, at)
    history.attempt("low", (0, 0, 10, 10), "g0")
    history.end("low", 10)
    history.attempt("high", (10, 10, 14, 14), "g0")
    history.end("high", 14)
    history.query("select 1")
    _set_priority(tmp_path / "warehouse.duckdb", "high", 5)
    found = replay_history(history, tmp_path, policies=[Choice("priority")])
    assert ends(found.replayed) == {"low": 10, "high": 14}
    assert ends(found.alternatives[0]) == {"low": 14, "high": 9}


def test_devices_that_were_away_are_away(history: LiveHistory, tmp_path: Path) -> None:
    history.pool("g0", "g1")
    history.health("g1", 5, "sick")
    history.health("g1", 25, "healthy")
    for number, job_id in enumerate("abc"):
        history.queued(job_id, 10, 10)
        began = (10, 20, 25)[number]
        history.attempt(job_id, (began, began, began + 10, began + 10), "g1" if job_id == "c" else "g0")
        history.end(job_id, began + 10)
    found = replay_history(history, tmp_path)
    assert ends(found.replayed) == ends(found.recorded) == {"a": 20, "b": 30, "c": 35}


def test_jobs_without_an_ordinary_end(history: LiveHistory, tmp_path: Path) -> None:
    history.pool("g0")
    history.queued("failed", 0, 0)
    history.attempt("failed", (0, 0, 10, 10), "g0", outcome="failed")
    history.end("failed", 10, "failed")
    history.queued("cancelled", 1, 1, gpus=1)
    history.end("cancelled", 15, "cancelled")
    history.queued("next", 2, 2)
    history.attempt("next", (10, 10, 20, 20), "g0")
    history.end("next", 20)
    history.queued("runs", 3, 3)
    history.record(AttemptStarted("runs", 1, "fifo", "process", '["n0"]', T + 20, T + 20))
    history.record(Allocated("runs", 1, "g0", "n0", 0, T + 20))
    history.queued("waits", 4, 4)
    history.job("refused", 5)
    history.end("refused", 5, "refused")
    found = replay_history(history, tmp_path)
    assert [job.job_id for job in found.recorded.jobs] == ["failed", "next"]
    # The cancelled job is before the next one in the queue, but did not get the device in reality.
    assert ends(found.replayed)["failed"] == 10
    assert "1 job not counted: was cancelled while it waited." in found.known
    assert "1 job not counted: never ran: refused." in found.known
    assert "2 jobs not counted: has not ended." in found.known
    assert any(note.startswith("1 job that still runs:") for note in found.assumed)


def test_a_job_that_is_run_again_after_its_end_does_not_count(history: LiveHistory, tmp_path: Path) -> None:
    """It failed, and hours later somebody retried it. Nobody knows when it began to wait again."""
    history.pool("g0")
    for job_id, at in (("a", 0), ("b", 10)):
        history.queued(job_id, at, at)
    history.attempt("a", (0, 0, 10, 10), "g0", outcome="failed")
    history.end("a", 10, "failed")
    history.attempt("b", (10, 10, 20, 20), "g0")
    history.end("b", 20)
    history.attempt("a", (5000, 5000, 5100, 5100), "g0", number=2)
    history.end("a", 5100)
    found = replay_history(history, tmp_path)
    assert ends(found.recorded).keys() == {"b"}
    assert "1 job not counted: was run again after its end." in found.known
    assert "1 other job that competed with them is replayed and not counted." in found.known
    assert "1 job run again after the end: in the replay goes on without that break." in found.assumed


def test_breaks_after_a_failure_are_stated(history: LiveHistory, tmp_path: Path) -> None:
    history.pool("g0")
    history.queued("a", 0, 0)
    history.attempt("a", (0, 0, 10, 10), "g0", outcome="crashed")
    history.attempt("a", (60, 60, 70, 70), "g0", number=2)
    history.end("a", 70)
    found = replay_history(history, tmp_path)
    assert "1 job run again after a failure: in the replay goes on without that break." in found.assumed


def test_other_nodes_have_none_of_the_outages_of_the_pool(history: LiveHistory, tmp_path: Path) -> None:
    """Declared devices are named alike, whatever the cluster: here two of the pool are in the other, too."""
    [node] = declare("1x2")
    first, second = (device.id for device in node.devices)
    history.pool(first, second)
    history.health(second, 5, "gone")
    for number, job_id in enumerate("ab"):
        history.queued(job_id, 10, 10)
        began = 10 + 10 * number
        history.attempt(job_id, (began, began, began + 10, began + 10), first)
        history.end(job_id, began + 10)
    found = replay_history(history, tmp_path, nodes=[node], cluster="1x2")
    assert ends(found.replayed) == {"a": 20, "b": 30}
    assert ends(found.alternatives[0]) == {"a": 20, "b": 20}


def test_old_jobs_take_any_device_and_that_is_stated(history: LiveHistory, tmp_path: Path) -> None:
    history.device("g0")
    history.swap(0, "", "fifo")
    history.run("a", 0, 5, 10, "g0")
    found = replay_history(history, tmp_path)
    assert ends(found.recorded) == {"a": 10}
    assert any("1 job recorded before gpu-flows kept what jobs ask for" in note for note in found.assumed)
    assert any("protected from preemption as by default" in note for note in found.assumed)


def test_a_trace_of_old_records_says_what_is_missing(history: LiveHistory, tmp_path: Path) -> None:
    history.run("a", 0, 5, 10, "g0")
    history.query("select 1")
    trace = recorded_trace.load(tmp_path / "warehouse.duckdb")
    assert (
        trace.remark
        == "Of 1 jobs the nodes and GPU models that they require were not recorded: they take any."
    )


# What cannot be replayed


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"pool": "nobody"}, NoRecord, "has no job that was submitted in this time"),
        ({"since": 9e9}, NoRecord, "has no job that was submitted in this time"),
        ({"experiment": "none"}, NoRecord, "holds no jobs of experiment 'none'"),
        ({"policies": [Choice("best")]}, PolicyError, "There is no policy 'best'"),
    ],
)
def test_errors_say_what_is_missing(
    history: LiveHistory, tmp_path: Path, choices: dict[str, Any], error: type[Exception], message: str
) -> None:
    history.device("g0")
    history.run("a", 0, 5, 10, "g0")
    with pytest.raises(error, match=message):
        replay_history(history, tmp_path, **choices)


def test_a_file_that_is_no_warehouse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRecord, match="There is no warehouse"):
        replay(tmp_path / "none.duckdb")
