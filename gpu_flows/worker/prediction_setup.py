"""Opens the prediction of a pool: its predictors, the traces of training steps, and what it learns from.

The predictors are the current ones of this machine (see `predictor_store`), which have learned the jobs that
ended since. They are loaded in the background: until then jobs enter the queue without predictions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.config.paths import home, predictor_folder
from gpu_flows.dispatch.attempt_facts import EndedAttempt
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.prediction.declared import DeclaredFeatures
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prediction.predictor_store import Predictors, PredictorStore, StoreError
from gpu_flows.prediction.trace_process import trace_in_process
from gpu_flows.prediction.trace_queue import TraceQueue
from gpu_flows.prediction.warehouse_rows import read_ended_jobs, read_runs
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.policy import Slowdown
from gpu_flows.schedulers.prediction.colocated_runs import learn_from_runs
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.gavel_pairs import gavel_pairs
from gpu_flows.schedulers.prediction.interference import Interference
from gpu_flows.schedulers.prediction.memory_history import MemoryHistory

LOOK_EVERY_S = 60.0  # for a new version of the predictors
AT_ONCE = 20  # jobs learned before other threads get their turn


def open_prediction(
    engine: Engine,
    job_store: JobStore,
    record: Callable[..., None],
    tell: Callable[[str, str], None],
    on_ready: Callable[[set[str]], None],
    log: logging.Logger,
) -> LivePrediction:
    """Return the prediction of a pool, which has learned nothing yet."""

    def raised_bound(job_id: str) -> int:
        raised = job_store.load_raise(job_id)
        return raised.bound_mb if raised else 0

    return LivePrediction(
        engine.cluster,
        record,
        tell,
        on_ready,
        raised_bound,
        lambda: engine.active_policy.shares_devices,
        traces=TraceQueue(home() / "traces", trace_in_process, log, on_ready),
        history=MemoryHistory(),
        durations=DurationPredictor(),
    )


def learn_end(prediction: LivePrediction, ended: EndedAttempt) -> None:
    """Let the predictors learn from an ended attempt."""
    launch = ended.launch
    prediction.learn(
        launch.job, launch.devices, ended.outcome, ended.ran_s, ended.peak_mb or 0.0, ended.needed_mb or 0.0
    )


async def keep_predictors(
    prediction: LivePrediction,
    set_slowdown: Callable[[Slowdown], None],
    find_database: Callable[[], Path | None],
    log: logging.Logger,
) -> None:
    """Load the predictors, and load them again whenever there is a new version. What fails is tried again."""
    store, version = PredictorStore(predictor_folder()), None
    while True:
        try:
            current = await asyncio.to_thread(store.current_version)
            database = find_database()
            if database and current != version:
                loaded = await asyncio.to_thread(load_predictors, store, database)
                prediction.features, prediction.version = loaded.features, current
                prediction.history, prediction.durations = loaded.history, loaded.durations
                prediction.learn_again(loaded.job_ids)
                set_slowdown(loaded.interference.of_jobs)
                version = current
        except (StoreError, QueryError) as error:
            log.warning("The predictors were not loaded: %s", error)
        except Exception:  # files and rows may hold anything; loading takes seconds, so not again at once
            log.exception("The predictors were not loaded")
        await asyncio.sleep(LOOK_EVERY_S)


class Loaded(NamedTuple):
    """Predictors that have learned all ended jobs."""

    features: DeclaredFeatures
    history: MemoryHistory
    durations: DurationPredictor
    interference: Interference
    job_ids: frozenset[str]  # of those jobs


def load_predictors(store: PredictorStore, database: Path) -> Loaded:
    """Return the stored predictors, after they have learned the jobs that ended since. Blocks. Raises
    StoreError and QueryError."""
    stored = store.load_current() or Predictors()
    history, durations = stored.memory_history or MemoryHistory(), stored.durations or DurationPredictor()
    peaks_until, times_until = (
        stored.learned_until.get(part, 0.0) for part in ("memory_history", "durations")
    )
    jobs = read_ended_jobs(database)
    for number, job in enumerate(jobs):
        if number % AT_ONCE == 0:
            time.sleep(0)  # lets the event loop run
        if job.peak_mib and job.ended > peaks_until:
            history.learn(job.features, job.gpu_model, job.peak_mib, not job.is_complete, job.device_mib)
        if job.is_complete and job.ended > times_until:
            durations.learn(job.features, job.gpu_model, job.gpus, job.seconds)
    features = DeclaredFeatures(stored.memory_features)
    job_ids = frozenset(job.job_id for job in jobs)
    return Loaded(features, history, durations, load_interference(database), job_ids)


def load_interference(database: Path) -> Interference:
    """Return what Gavel measured, and what the recorded runs show. Blocks. Raises QueryError."""
    known = Interference(gavel_pairs())
    learn_from_runs(known, read_runs(database))
    known.prepare()
    return known
