"""Jobs are completed with predicted memory and time before they enter the queue, without any wait."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_pool import happens, in_event_loop

from gpu_flows.prediction import live, trace_queue
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prediction.trace_queue import Step, TraceQueue
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.estimate import Estimate, JobFeatures
from gpu_flows.schedulers.prediction.memory_history import MemoryHistory
from gpu_flows.schedulers.prediction.options import PredictionOptions
from gpu_flows.worker.status_text import describe_time, mark_time

FEATURES = JobFeatures("train", "nightly", "ann", 1, {"batch": 64})
STEP = "module:make_step"


class FakeMemory:
    """A memory predictor that knows the flows in `known`."""

    def __init__(self, how: str, **known: float) -> None:
        self.how, self.known = how, known
        self.learned: list[tuple[str, float, bool]] = []

    def estimate(self, features: JobFeatures, gpu_model: str) -> Estimate | None:
        mb = self.known.get(features.flow)
        return Estimate(mb, 1.1 * mb, self.how) if mb else None

    def learn(
        self, features: JobFeatures, gpu_model: str, peak_mb: float, is_least: bool, device_mb: float
    ) -> None:
        self.learned.append((gpu_model, peak_mb, is_least))

    def find_enough(self, features: JobFeatures) -> float:
        return 0.0


class FakeTime:
    def __init__(self) -> None:
        self.learned: list[float] = []

    def estimate(self, features: JobFeatures, gpu_model: str, gpus: int) -> Estimate | None:
        return Estimate(100.0, 200.0, "history")

    def learn(self, features: JobFeatures, gpu_model: str, gpus: int, seconds: float) -> None:
        self.learned.append(seconds)


class FakeTracer:
    """Traces wait until `gate` is open. Each call is noted."""

    def __init__(self, estimate: Estimate | Exception) -> None:
        self.estimate, self.calls, self.gate = estimate, list[str](), threading.Event()
        self.gpus: list[tuple[str, int]] = []
        self.gate.set()

    def __call__(
        self, step: str, options: Mapping[str, Any], gpu: str, memory_mib: int, **limits: Any
    ) -> Estimate:
        self.calls.append(step)
        self.gpus.append((gpu, memory_mib))
        assert self.gate.wait(60)
        if isinstance(self.estimate, Exception):
            raise self.estimate
        return self.estimate


class Lab:
    """A prediction with its surroundings."""

    def __init__(self, cluster: str = "1x2:T4:16+1x1:A100:40", **fields: Any) -> None:
        self.facts: list[Any] = []
        self.told: dict[str, str] = {}
        self.ready: list[set[str]] = []
        self.prediction = LivePrediction(
            Cluster(declare(cluster)),
            lambda *facts: self.facts.extend(facts),
            self.told.__setitem__,
            self.ready.append,
            **fields,
        )

    def complete(self, job: Job, step: str = "") -> Job:
        done = self.prediction.complete(job, FEATURES, step, {"batch": 64})
        assert not done.is_pending
        return done.job

    def rows(self, table: str) -> list[Any]:
        return [fact for fact in self.facts if fact.table == table]


def test_history_comes_before_features_and_what_is_stated_before_both() -> None:
    both = {"history": FakeMemory("history", train=4000.0), "features": FakeMemory("features", train=9000.0)}
    assert Lab(**both).complete(Job("a")).memory_mb == 4400
    assert Lab(features=both["features"]).complete(Job("a")).memory_mb == 9900
    stated = Lab(**both).complete(Job("a", memory_mb=2000))
    assert (stated.memory_mb, stated.predicted) == (2000, ())


def test_what_was_predicted_is_named_recorded_and_told() -> None:
    lab = Lab(history=FakeMemory("history", train=4000.0), durations=FakeTime())
    job = lab.complete(Job("a"))
    assert (job.expected_s, job.predicted) == (100.0, ("expected_s", "memory_mb"))
    (features,) = lab.rows("job_features")
    assert json.loads(features.predicted) == ["expected_s", "memory_mb"]
    assert json.loads(features.parameters) == {"batch": 64}
    assert {(row.quantity, row.how) for row in lab.rows("predictions")} == {
        ("memory_mb", "history"),
        ("seconds", "history"),
    }
    assert "GPU memory 3.91 GB, at most 4.3 GB (predicted, history)" in lab.told["a"]
    assert job.as_stated() == Job("a", kind="train")


def test_a_stated_need_is_recorded_as_stated_and_not_told() -> None:
    lab = Lab()
    lab.complete(Job("a", memory_mb=2000, expected_s=5))
    assert [row.how for row in lab.rows("predictions")] == ["stated", "stated"]
    assert not lab.told


def test_a_time_that_only_the_progress_told_is_not_shown_as_stated() -> None:
    lab = Lab()
    job = lab.complete(Job("a")).expecting(29.0)
    shown = lab.prediction.describe(job)["time"]
    assert (describe_time(shown), mark_time({"time": shown})) == ("29s (predicted from its progress)", "~29s")
    assert job.as_stated().expected_s is None
    elsewhere = Lab().prediction.describe(job)["time"]
    assert elsewhere is not None
    assert elsewhere["how"] == "predicted", "a later worker knows at least that nobody stated it"
    stated = lab.complete(Job("b", expected_s=5.0)).expecting(29.0)
    assert stated.predicted == ()


def test_a_job_that_is_built_again_is_recorded_once() -> None:
    lab = Lab(durations=FakeTime())
    assert lab.complete(Job("a")) == lab.complete(Job("a"))
    assert len(lab.facts) == 2


@pytest.mark.parametrize(("later", "bound"), [(4100.0, 4400), (6000.0, 6600)])
def test_a_waiting_job_follows_noticeable_changes_only(later: float, bound: int) -> None:
    memory = FakeMemory("history", train=4000.0)
    lab = Lab(history=memory)
    lab.complete(Job("a"))
    memory.known["train"] = later
    assert lab.complete(Job("a")).memory_mb == bound
    assert len(lab.rows("predictions")) == 1 + (bound != 4400)


def test_switched_off_nothing_is_predicted() -> None:
    options = PredictionOptions(enabled=False)
    lab = Lab(history=FakeMemory("history", train=4000.0), durations=FakeTime(), options=options)
    assert lab.complete(Job("a")) == Job("a", kind="train")


@pytest.mark.parametrize(
    ("gpus", "predicted_mb", "bound_mb"),
    [
        (1, 20_000, 22_000),  # only the A100 has that much
        (1, 60_000, 40 * 1024),  # more than any device has: the largest one
        (2, 20_000, 16 * 1024),  # the only node with two devices has small ones
        (4, 20_000, 0),  # impossible, whatever its memory: the engine refuses it for its size
    ],
)
def test_a_prediction_never_makes_a_job_impossible(gpus: int, predicted_mb: float, bound_mb: int) -> None:
    job = Lab(history=FakeMemory("history", train=predicted_mb)).complete(Job("a", gpus=gpus))
    assert job.memory_mb == bound_mb


def test_a_bound_is_fitted_anew_if_the_devices_change() -> None:
    lab = Lab(history=FakeMemory("history", train=20_000.0))
    assert lab.complete(Job("a")).memory_mb == 22_000
    before = lab.prediction.basis
    lab.prediction.cluster.set_nodes(declare("1x2:T4:16"))
    assert lab.prediction.basis != before
    assert lab.complete(Job("a")).memory_mb == 16 * 1024


def test_a_job_is_not_kept_off_devices_on_which_it_completed() -> None:
    """It filled them. Torch takes what there is, so a margin above its peak says nothing."""
    lab = Lab(history=MemoryHistory())
    job, devices = lab.complete(Job("a")), lab.prediction.cluster.nodes["node-1"].node.devices[:1]
    lab.prediction.learn(job, devices, "completed", 50.0, 15_600.0)
    assert lab.complete(Job("b")).memory_mb == 16 * 1024
    assert "at most 16 GB" in lab.told["b"]
    lab.prediction.learn(job, devices, "out_of_memory", 50.0, 15_600.0, 16_000.0)
    assert lab.complete(Job("c")).memory_mb > 16 * 1024


def test_a_share_that_did_not_suffice_is_no_proof() -> None:
    """The A100 was given out in shares, and the job had as much as a T4 has."""
    lab = Lab(history=MemoryHistory())
    small, large = (lab.prediction.cluster.nodes[name].node.devices[:1] for name in ("node-1", "node-2"))
    job = lab.complete(Job("a"))
    lab.prediction.learn(job, small, "completed", 50.0, 15_600.0)
    shared = lab.complete(Job("b"))
    lab.prediction.learn(shared, large, "out_of_memory", 50.0, 16_000.0, 17_000.0)
    assert lab.complete(Job("c")).memory_mb > 17_000


@pytest.mark.parametrize(
    ("how", "predicted_mb", "bound_mb"),
    [
        ("history", 15_500.0, 16 * 1024),  # it may well fit
        ("history", 20_000.0, 22_000),  # it used more before: it waits for the A100
        ("features", 20_000.0, 16 * 1024),  # a guess
        ("features", 4000.0, 4400),
    ],
)
def test_a_bound_is_lowered_while_larger_devices_are_out_of_service(
    how: str, predicted_mb: float, bound_mb: int
) -> None:
    lab = Lab(history=FakeMemory(how, train=predicted_mb))
    in_service, before = lab.complete(Job("a")).memory_mb, lab.prediction.basis
    lab.prediction.cluster.mark_node("node-2", False, "drained")
    assert lab.prediction.basis != before
    assert lab.complete(Job("a")).memory_mb == bound_mb
    lab.prediction.cluster.mark_node("node-2", True)
    assert lab.complete(Job("a")).memory_mb == in_service == round(1.1 * predicted_mb)


def test_a_raised_bound_waits_for_devices_out_of_service() -> None:
    lab = Lab(raised_bound=lambda job_id: 20_000)
    lab.prediction.cluster.mark_node("node-2", False, "down")
    assert lab.complete(Job("a")).memory_mb == 20_000


def test_a_raised_bound_replaces_every_smaller_one() -> None:
    lab = Lab(history=FakeMemory("history", train=4000.0), raised_bound=lambda job_id: 12_000)
    assert lab.complete(Job("a")).memory_mb == 12_000
    stated = lab.complete(Job("b", memory_mb=2000))
    assert (stated.memory_mb, stated.predicted) == (12_000, ("memory_mb",))
    more = lab.complete(Job("c", memory_mb=16_000))  # its owner has asked for more since
    assert (more.memory_mb, more.predicted) == (16_000, ())


def test_ends_are_learned_at_once() -> None:
    memory, durations = FakeMemory("history"), FakeTime()
    lab = Lab(history=memory, durations=durations)
    job = lab.complete(Job("a"))
    devices = (next(iter(lab.prediction.cluster.devices.values())).device,)
    lab.prediction.learn(job, devices, "out_of_memory", 5.0, 3000.0, 4000.0)
    lab.prediction.learn(job, devices, "completed", 50.0, 5000.0)
    assert memory.learned == [("T4", 4000.0, True), ("T4", 5000.0, False)]
    assert durations.learned == [50.0]


def test_new_predictors_learn_what_ended_while_they_were_loaded() -> None:
    lab = Lab(history=FakeMemory("history"), durations=FakeTime())
    devices = (next(iter(lab.prediction.cluster.devices.values())).device,)
    for number, name in enumerate(("known", "late")):
        lab.prediction.learn(lab.complete(Job(name)), devices, "completed", 50.0 + number, 5000.0 + number)
    memory, durations = FakeMemory("history"), FakeTime()
    lab.prediction.history, lab.prediction.durations = memory, durations
    lab.prediction.learn_again({"known"})
    assert (memory.learned, durations.learned) == ([("T4", 5001.0, False)], [51.0])


# -- traces -----------------------------------------------------------------------------------


def open_traces(folder: Path, tracer: FakeTracer, lab: Lab) -> None:
    lab.prediction.traces = TraceQueue(folder, tracer, logging.getLogger(__name__), lab.ready.append)


async def until_ready(lab: Lab, count: int = 1) -> None:
    assert await happens(lambda: len(lab.ready) >= count), "no trace was finished"


@in_event_loop
async def test_a_job_waits_for_its_trace_and_like_jobs_do_not(tmp_path: Path) -> None:
    tracer, lab = FakeTracer(Estimate(5000, 5500, "traced")), Lab()
    open_traces(tmp_path, tracer, lab)
    assert lab.prediction.complete(Job("a"), FEATURES, STEP, {}).is_pending
    assert lab.prediction.complete(Job("b"), FEATURES, STEP, {}).is_pending
    await until_ready(lab)
    assert lab.ready == [{"a", "b"}]
    assert [lab.prediction.complete(Job(name), FEATURES, STEP, {}).job.memory_mb for name in "abc"] == [
        5500
    ] * 3
    again = Lab()
    open_traces(tmp_path, tracer, again)  # of the next worker
    assert again.prediction.complete(Job("d"), FEATURES, STEP, {}).job.memory_mb == 5500
    assert tracer.calls == [STEP]
    assert tracer.gpus == [("A100", 40 * 1024)]  # the largest device


@in_event_loop
async def test_no_job_waits_for_a_trace_that_changes_nothing(tmp_path: Path) -> None:
    tracer, lab = FakeTracer(Estimate(5000, 5500, "traced")), Lab("2x2:T4:16", shares_devices=lambda: False)
    open_traces(tmp_path, tracer, lab)
    assert lab.complete(Job("a"), STEP).memory_mb == 0
    await until_ready(lab)  # it is traced all the same, for those who look
    assert lab.complete(Job("a"), STEP).memory_mb == 5500


@in_event_loop
async def test_after_its_wait_a_job_enters_without_a_bound(tmp_path: Path) -> None:
    tracer, lab = (
        FakeTracer(Estimate(5000, 5500, "traced")),
        Lab(options=PredictionOptions(wait_seconds=0.05)),
    )
    open_traces(tmp_path, tracer, lab)
    tracer.gate.clear()
    assert lab.prediction.complete(Job("a"), FEATURES, STEP, {}).is_pending
    await until_ready(lab)
    assert lab.complete(Job("a"), STEP).memory_mb == 0
    tracer.gate.set()
    await until_ready(lab, 2)  # a job that still waits in the queue gets its bound after all
    assert lab.ready[-1] == {"a"}


@in_event_loop
async def test_deadlines_of_cancelled_jobs_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer, lab = FakeTracer(Estimate(5000, 5500, "traced")), Lab()
    open_traces(tmp_path, tracer, lab)
    tracer.gate.clear()
    now = 1000.0
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now))
    for name in ("cancelled", "cancelled too"):
        assert lab.prediction.complete(Job(name), FEATURES, STEP, {}).is_pending
    now += lab.prediction.options.wait_seconds + live.KEEP_DEADLINE_S + 1
    assert lab.prediction.complete(Job("a"), FEATURES, STEP, {}).is_pending
    assert list(lab.prediction._deadlines) == ["a"]
    tracer.gate.set()


@in_event_loop
async def test_a_failed_trace_is_remembered_logged_once_and_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracer, lab = FakeTracer(ValueError("no such layer")), Lab(features=FakeMemory("features", train=7000.0))
    open_traces(tmp_path, tracer, lab)
    assert lab.prediction.complete(Job("a"), FEATURES, STEP, {}).is_pending
    await until_ready(lab)
    for name in "abc":
        assert lab.prediction.complete(Job(name), FEATURES, STEP, {}).job.memory_mb == 7700
    assert len(tracer.calls) == 1
    assert [record.getMessage() for record in caplog.records].count(
        f"The memory of step {STEP} cannot be predicted: ValueError: no such layer"
    ) == 1


@in_event_loop
async def test_the_owner_of_each_job_is_told_once_that_its_step_fails(tmp_path: Path) -> None:
    lab = Lab()
    open_traces(tmp_path, FakeTracer(ValueError("no such layer")), lab)
    lab.prediction.complete(Job("a"), FEATURES, STEP, {})
    await until_ready(lab)
    why = f"The memory of step {STEP} cannot be predicted: ValueError: no such layer"
    for name in "ab":
        lab.prediction.complete(Job(name), FEATURES, STEP, {})
        assert lab.told.pop(name) == why
        lab.prediction.complete(Job(name), FEATURES, STEP, {})
    assert not lab.told


@in_event_loop
async def test_a_job_stays_in_the_queue_while_its_step_is_traced_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for outcome, bound in ((Estimate(5000, 5500, "traced"), 5500), (ValueError("no such layer"), 0)):
        tracer, lab = FakeTracer(outcome), Lab()
        open_traces(tmp_path / str(bound), tracer, lab)
        assert lab.prediction.complete(Job("a"), FEATURES, STEP, {"batch": 64}).is_pending
        await until_ready(lab)
        assert lab.complete(Job("a"), STEP).memory_mb == bound
        with monkeypatch.context() as later:
            later.setattr(trace_queue, "KEEP_S", 0.0)
            later.setattr(trace_queue, "KEEP_FAILURE_S", 0.0)
            assert lab.complete(Job("a"), STEP).memory_mb == bound
        await until_ready(lab, 2)
        assert len(tracer.calls) == 2


@in_event_loop
async def test_traces_run_one_at_a_time_and_not_without_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_queue, "MOST_WAITING", 2)
    tracer = FakeTracer(Estimate(1, 2, "traced"))
    tracer.gate.clear()
    done: list[set[str]] = []
    queue = TraceQueue(tmp_path, tracer, logging.getLogger(__name__), done.append)
    assert queue.find(Step("m:a", {}), "1") is None
    assert queue.find(Step("m:b", {}), "2") is None
    refused = queue.find(Step("m:c", {}), "3")
    assert refused is not None
    assert "too many" in refused.error
    while not tracer.calls:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert tracer.calls == ["m:a"]
    tracer.gate.set()
    while len(done) < 2:
        await asyncio.sleep(0.001)
    assert tracer.calls == ["m:a", "m:b"]
