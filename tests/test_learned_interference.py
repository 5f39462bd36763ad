"""Slowdowns are learned from the recorded runs of a pool, and handed to its engine in the background."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analytics_history import History, T

from gpu_flows.analytics.facts import FeaturesSeen
from gpu_flows.prediction.predictor_store import PredictorStore
from gpu_flows.prediction.warehouse_rows import read_runs
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import Slowdown
from gpu_flows.worker import prediction_setup
from gpu_flows.worker.prediction_setup import Loaded, keep_predictors, load_interference

pytest_plugins = ["command_line.fixtures"]

CNN, RNN = Job("c", kind="train cnn"), Job("r", kind="train rnn")


def describe(history: History, job_id: str, kind: str, **parameters: Any) -> None:
    history.record(FeaturesSeen(job_id, kind, json.dumps(parameters), "[]"))


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Alone an epoch of the CNN takes 10 s, and one of the RNN 20 s; beside each other 15 s and 22 s."""
    history = History(tmp_path)
    for device in ("d0", "d1", "d2"):
        history.device(device)
    for number in range(3):
        at, epochs = 1000.0 * number, 10 + number
        history.run(f"c{number}", at, at, at + 10 * epochs, "d0")
        describe(history, f"c{number}", CNN.kind, epochs=epochs)
        history.run(f"r{number}", at, at, at + 20 * epochs, "d1")
        describe(history, f"r{number}", RNN.kind, epochs=epochs)
    history.run("c", 5000, 5000, 5150, "d0")
    describe(history, "c", CNN.kind, epochs=10)
    history.run("r", 5000, 5000, 5220, "d0")
    describe(history, "r", RNN.kind, epochs=10)
    history.query("select 1")  # writes what was recorded
    return tmp_path / "warehouse.duckdb"


def test_runs_that_shared_a_device_are_compared_by_their_time_per_epoch(warehouse: Path) -> None:
    known = load_interference(warehouse)
    assert known.of_jobs(CNN, [RNN], "GTX") == pytest.approx(1.5)
    assert known.of_jobs(RNN, [CNN], "GTX") == pytest.approx(1.1)


def test_runs_are_read_with_their_devices_kind_and_work(tmp_path: Path) -> None:
    history = History(tmp_path)
    for device in ("d0", "d1"):
        history.device(device)
    history.run("whole", 0, 1, 7, "d0", "d1")
    describe(history, "whole", "f net", config={"epochs": 3})
    history.job("twice", 0)
    history.start("twice", 2, "d0")
    history.stop("twice", 3, outcome="preempted")
    history.start("twice", 8, "d0", attempt=2)
    history.stop("twice", 9, attempt=2)
    history.end("twice", 9)
    describe(history, "twice", "f net", lr=0.1)
    history.run("without features", 10, 10, 12, "d0")
    history.run("simulated", 0, 1, 7, "d0", experiment="x")
    history.query("select 1")
    runs = sorted(read_runs(tmp_path / "warehouse.duckdb"), key=lambda run: run.started)
    whole, first, second, unknown = runs
    assert whole == ("f net", "GTX", {"d0", "d1"}, T + 1, T + 7, "epochs", 3.0, True)
    assert (first.is_whole, second.is_whole) == (False, False), "each did a part of the work"
    assert first.unit == '{"lr": 0.1}', "without an amount of work, only the same parameters compare"
    assert (unknown.kind, unknown.is_whole) == ("f", False)


@pytest.mark.usefixtures("own_home")
def test_what_cannot_be_loaded_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[Path] = []
    interference: Any = SimpleNamespace(of_jobs="slowdown")

    def load(store: PredictorStore, database: Path) -> Loaded:
        tried.append(database)
        if len(tried) == 1:
            raise TypeError("a row without a time")
        none: Any = None
        return Loaded(none, none, none, interference, frozenset())

    monkeypatch.setattr(prediction_setup, "load_predictors", load)
    monkeypatch.setattr(prediction_setup, "LOOK_EVERY_S", 0.0)
    given: list[Any] = []

    def set_slowdown(slowdown: Slowdown) -> None:
        given.append(slowdown)
        if len(given) == 1:
            raise ValueError("not yet")

    async def keep() -> None:
        prediction: Any = SimpleNamespace(learn_again=lambda job_ids: None)
        log = logging.getLogger(__name__)
        async with asyncio.timeout(60):
            task = asyncio.create_task(keep_predictors(prediction, set_slowdown, lambda: Path("w"), log))
            while len(given) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            task.cancel()

    asyncio.run(keep())
    assert given == ["slowdown"] * 2, "once more after the error, and not again after the success"
    assert len(tried) == 3
    assert "a row without a time" in caplog.text


@pytest.mark.usefixtures("own_home")
def test_the_engine_gets_what_was_learned_when_the_predictors_are_loaded(warehouse: Path) -> None:
    engine = Engine((), Fifo())
    prediction: Any = SimpleNamespace(learn_again=lambda job_ids: None)

    async def load() -> None:
        loaded = asyncio.Event()

        def set_slowdown(slowdown: Slowdown) -> None:
            engine.set_slowdown(slowdown)
            loaded.set()

        async with asyncio.timeout(60):
            keeping = keep_predictors(prediction, set_slowdown, lambda: warehouse, logging.getLogger())
            task = asyncio.create_task(keeping)
            await loaded.wait()
            task.cancel()

    before = engine._state.slowdown(CNN, [RNN], "GTX")
    asyncio.run(load())
    assert engine._state.slowdown(CNN, [RNN], "GTX") == pytest.approx(1.5)
    assert before != pytest.approx(1.5)
    assert prediction.durations.learned == 8
