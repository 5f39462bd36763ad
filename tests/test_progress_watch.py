"""From a job's output to the engine: what is read, told, recorded and kept after a preemption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_pool import FakePool, in_event_loop

from gpu_flows.analytics.facts import Predicted, ProgressReported
from gpu_flows.runtimes.output_tail import MOST_BYTES, OutputTail
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.told_end import ToldEnd
from gpu_flows.worker.progress_watch import ProgressWatch


class Watched:
    """A pool whose jobs print progress."""

    def __init__(self, folder: Path, parameters: dict[str, Any] | None = None) -> None:
        self.pool = FakePool(folder, cluster="1x1", policy=make_policy("srtf"))
        runtime, self.predictor = self.pool.runtime, DurationPredictor()
        self.watch = ProgressWatch(
            self.pool.dispatcher,
            runtime.read_output,
            lambda job_id: parameters or {},
            lambda *facts: self.pool.facts.extend(facts),
            lambda job, devices, ran_s: self.predictor.estimate(JobFeatures(), "", 1, ran_s),
            clock=lambda: runtime.now,
        )

    async def pass_time(self, job_id: str, seconds: float, *lines: str) -> None:
        """Let the job print these lines after so many seconds."""
        runtime = self.pool.runtime
        runtime.now += seconds
        runtime.printed[runtime.live[job_id].launch.id] = list(lines)
        await self.watch.watch_once()

    def expected(self, job_id: str) -> float | None:
        return self.pool.engine.running[job_id].job.expected_s

    def reports(self) -> list[ProgressReported]:
        return [fact for fact in self.pool.facts if isinstance(fact, ProgressReported)]


@in_event_loop
async def test_progress_sets_the_expected_duration(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.pool.submit("a")
    await watched.pool.wait_for_running("a")
    assert watched.expected("a") is None
    for step in range(1, 6):
        await watched.pass_time("a", 10, "loss 0.3", f"step {step}/20")
    assert watched.expected("a") == pytest.approx(200, rel=0.05)
    shown = watched.watch.describe("a")
    assert shown is not None
    assert shown["fraction"] == 0.25
    assert shown["remaining_s"] == pytest.approx(150, rel=0.05)
    assert shown["source"] == "steps"


@in_event_loop
async def test_a_stated_duration_is_corrected(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.pool.submit("a", expected_s=10_000.0)
    await watched.pool.wait_for_running("a")
    for step in range(1, 11):
        await watched.pass_time("a", 10, f"Epoch {step}/20 loss 0.3")
    assert watched.expected("a") == pytest.approx(200, rel=0.1)


@in_event_loop
async def test_small_changes_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, told = Watched(tmp_path), []
    expect = watched.pool.dispatcher.expect
    monkeypatch.setattr(watched.pool.dispatcher, "expect", lambda *args: (told.append(args), expect(*args)))
    watched.pool.submit("a")
    await watched.pool.wait_for_running("a")
    for step in range(1, 20):
        await watched.pass_time("a", 10, f"step {step}/20")
    assert 1 <= len(told) <= 3, "a steady job is as expected"


@in_event_loop
async def test_what_is_told_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays tell it again: they find it among the reports by the same rule."""
    watched, told = Watched(tmp_path), []
    expect = watched.pool.dispatcher.expect
    monkeypatch.setattr(watched.pool.dispatcher, "expect", lambda *args: (told.append(args), expect(*args)))
    watched.pool.submit("a", expected_s=50.0)
    await watched.pool.wait_for_running("a")
    for step in range(1, 100):
        await watched.pass_time("a", 1 if step < 40 else 4, f"step {step}/100")
    assert len(told) > 4, "it becomes slower and slower than stated"
    rule = ToldEnd()
    found = [
        ("a", each.remaining_s) for each in watched.reports() if rule.update(each.time, each.remaining_s)
    ]
    assert found == told
    assert len(watched.reports()) > len(told)


@in_event_loop
async def test_reports_are_recorded_rarely(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.pool.submit("a")
    await watched.pool.wait_for_running("a")
    for step in range(1, 101):
        await watched.pass_time("a", 1, f"step {step}/100")
    reports = watched.reports()
    assert 9 <= len(reports) <= 11
    assert reports[4].remaining_s == pytest.approx(100 - 100 * reports[4].fraction, rel=0.1)
    predicted = [fact for fact in watched.pool.facts if isinstance(fact, Predicted)]
    assert {(fact.quantity, fact.how) for fact in predicted} == {("seconds", "progress")}
    assert predicted[-1].value == pytest.approx(100, rel=0.05)


@in_event_loop
async def test_srtf_preempts_a_job_whose_progress_shows_that_it_is_long(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    pool = watched.pool
    pool.submit("long", expected_s=100.0)
    await pool.wait_for_running("long")
    pool.submit("short", expected_s=200.0)
    await pool.settle()
    assert not pool.runtime.stop_requests, "by what its owner stated, it is the shorter one"
    for step in range(1, 6):
        await watched.pass_time("long", 10, f"step {step}/1000")
    await pool.wait_for_stop_request("long")
    pool.save_and_stop("long")
    await pool.wait_for_running("short")
    await pool.wait_for(lambda: pool.waiting() == {"long"}, "it waits again")
    (waiting,) = pool.engine.waiting
    assert waiting.expected_s is not None
    assert waiting.expected_s > 200
    pool.submit("long", expected_s=100.0)  # as the next poll finds it on the server
    (waiting,) = pool.engine.waiting
    assert waiting.expected_s > 200, "the correction stays with the job"


@in_event_loop
async def test_a_loop_that_begins_anew_is_not_believed_any_more(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.pool.submit("a")
    await watched.pool.wait_for_running("a")
    await watched.pass_time("a", 10, "step 10/20")
    assert watched.watch.describe("a") is not None
    await watched.pass_time("a", 10, "step 20/20", "step 1/20")
    assert watched.watch.describe("a") is None


@in_event_loop
async def test_a_silent_job_that_outlives_its_expectation_is_judged_by_longer_ones(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for seconds in [100.0] * 20 + [1000.0] * 3:
        watched.predictor.learn(JobFeatures(), "", 1, seconds)
    watched.pool.submit("a", expected_s=100.0)
    await watched.pool.wait_for_running("a")
    await watched.pass_time("a", 90, "loss 3")
    assert watched.expected("a") == 100
    await watched.pass_time("a", 30, "loss 2")
    assert watched.expected("a") == pytest.approx(1000, rel=0.01)
    predicted = [fact for fact in watched.pool.facts if isinstance(fact, Predicted)]
    assert [(fact.how, round(fact.value)) for fact in predicted] == [("history", 1000)]
    await watched.pass_time("a", 2000, "loss 1")
    assert watched.expected("a") == pytest.approx(1000, rel=0.01), "nothing is known of longer ones"


@in_event_loop
async def test_the_options_of_a_command_tell_the_number_of_epochs(tmp_path: Path) -> None:
    watched = Watched(tmp_path, {"command": "python train.py --epochs 8 --lr 0.1"})
    watched.pool.submit("a")
    await watched.pool.wait_for_running("a")
    await watched.pass_time("a", 10, "epoch 1 loss 3.1", "epoch 2 loss 2.1")
    shown = watched.watch.describe("a")
    assert shown is not None
    assert shown["fraction"] == 0.25


@in_event_loop
async def test_a_job_that_ended_is_not_followed(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.pool.submit("a")
    await watched.pool.wait_for_running("a")
    await watched.pass_time("a", 10, "step 10/20")
    watched.pool.runtime.exit("a", 0)
    await watched.pool.wait_for(lambda: watched.pool.job_ends(), "it has ended")
    await watched.watch.watch_once()
    assert watched.watch.describe("a") is None


# -- reading files ----------------------------------------------------------------------------


def test_a_bar_without_newlines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"hello\n\r 10%|#| 1/10\r 20%|#| 2/1")
    tail = OutputTail(path)
    assert tail.read() == ["hello", " 10%|#| 1/10"]
    with path.open("ab") as file:
        file.write(b"0\r 30%|#| 3/10")
    assert tail.read() == [" 20%|#| 2/10"], "a half line is not read before the rest of it"
    assert tail.read() == [" 30%|#| 3/10"], "nothing followed it"
    assert tail.read() == []


def test_of_much_output_the_beginning_and_the_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    lines = [f"line {number}" for number in range(100_000)]
    path.write_text("\n".join(lines) + "\n")
    read = OutputTail(path).read()
    assert read[0] == "line 0"
    assert read[-1] == "line 99999"
    assert sum(map(len, read)) < 2 * MOST_BYTES


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("step 1/2\n")
    (tmp_path / "output.log").symlink_to(tmp_path / "secret")
    assert OutputTail(tmp_path / "output.log").read() == []
    assert OutputTail(tmp_path / "absent.log").read() == []
