"""Predicted jobs on their way through the queue: they wait for their prediction, and keep a raised bound."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fake_pool import in_event_loop
from test_live_prediction import FakeTracer
from test_queue_sync import LOG, Pool

from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prediction.trace_queue import TraceQueue
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.worker.prediction_setup import learn_end

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. "
    "Of this, this process has 3.00 GiB memory in use."
)


def open_pool(folder: Path, tracer: FakeTracer) -> tuple[Pool, LivePrediction]:
    pool = Pool(folder / "pool")
    store = pool.dispatcher._job_store

    def raised_bound(job_id: str) -> int:
        raised = store.load_raise(job_id)
        return raised.bound_mb if raised else 0

    prediction = LivePrediction(
        pool.dispatcher.engine.cluster,
        lambda *facts: pool.facts.extend(facts),
        pool.log.write,
        lambda job_ids: pool.sync.on_predicted(job_ids),
        raised_bound,
        traces=TraceQueue(folder / "traces", tracer, LOG, lambda job_ids: pool.sync.on_predicted(job_ids)),
    )
    pool.due_jobs.prediction = prediction
    pool.dispatcher._runner.memory.on_attempt_end = lambda ended: learn_end(prediction, ended)
    return pool, prediction


def live_job(pool: Pool) -> Any:
    (attempt,) = pool.runtime.live.values() or [cast(Any, SimpleNamespace(launch=None))]
    return attempt.launch


@in_event_loop
async def test_a_job_waits_for_its_prediction_and_runs_with_it(tmp_path: Path) -> None:
    tracer = FakeTracer(Estimate(3000, 3500, "traced"))
    tracer.gate.clear()
    pool, _ = open_pool(tmp_path, tracer)
    run = pool.submit("a", memory_step="module:make_step")
    await pool.sync.sync_all()
    assert pool.codes() == {"a": "predicting"}
    await pool.sync.sync_all()  # a poll changes nothing
    assert pool.codes() == {"a": "predicting"}
    tracer.gate.set()
    await pool.until_running("a")
    assert (live_job(pool).job.memory_mb, live_job(pool).job.predicted) == (3500, ("memory_mb",))
    assert any(
        "GPU memory 2.93 GB, at most 3.42 GB (predicted, traced)" in line for line in await pool.lines(run)
    )
    (submitted,) = (fact for fact in pool.facts if fact.table == "jobs")
    assert submitted.gpu_memory_mb == 0, "it is recorded as its owner stated it"


@in_event_loop
async def test_a_raised_bound_stays_with_the_job(tmp_path: Path) -> None:
    pool, _ = open_pool(tmp_path, FakeTracer(Estimate(3000, 3500, "traced")))
    pool.dispatcher.engine.policy.shares_devices = True
    run = pool.submit("a", memory_step="module:make_step")
    await pool.sync.sync_all()
    await pool.until_running("a")
    pool.runtime.exit(str(run.id), 1, OOM)
    await pool.until(lambda: pool.running() and live_job(pool).attempt == 2, "the second attempt")
    assert live_job(pool).job.memory_mb == 6144
    names = pool.prefect.state_names(run.id)
    assert "OutOfMemory" in names
    assert "Failed" not in names
    assert "It ran out of GPU memory with 3.42 GB; it waits for 6 GB (1 of 2)." in await pool.lines(run)
    raised = [fact for fact in pool.facts if fact.table == "predictions" and fact.how == "raised"]
    assert [fact.upper for fact in raised] == [6144]
    pool.runtime.exit(str(run.id), 0)
    await pool.until(lambda: pool.ends() == {"a": "completed"}, "it completes")
