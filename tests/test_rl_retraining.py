"""Retraining of the policy rl: enough history, a judgement on the latest jobs, and what is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analytics_store import Store, T

from gpu_flows.analytics.facts import DeviceEvent, DeviceSeen, LearningStep, NodeSeen
from gpu_flows.analytics.simulated_facts import Experiment, write_simulations
from gpu_flows.deployments.rl_retrain import build_report
from gpu_flows.learning.retraining import (
    CURRENT,
    FIFO,
    NEW,
    History,
    Judgement,
    Retrained,
    Train,
    find_objection,
    retrain,
    write_trace,
)
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.learning import weights
from gpu_flows.schedulers.learning.curve import LearningPoint
from gpu_flows.schedulers.learning.network import Network
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.traces import load

HISTORY = History(generate("ams560:jobs=300,devices=8,load=2,wide=true", 1), declare("2x4"))


def reversed_weights() -> weights.Weights:
    """The weights of the package, with the order of all jobs reversed."""
    found = weights.pretrained()
    network = found.network
    w3, b3, skip = network.w3.copy(), network.b3.copy(), network.skip.copy()
    for array in (w3, b3, skip):
        array[..., 0] *= -1
    return replace(found, network=network._replace(w3=w3, b3=b3, skip=skip))


def training_to(result: weights.Weights, seen: list[Any] | None = None) -> Train:
    """A training that always has this result."""

    def train(
        *,
        output: Path,
        traces: Sequence[Path],
        seeds: Sequence[int],
        minutes: float | None,
        steps: int | None,
        processes: int,
        start: Network | None,
        command: str,
        progress: Callable[[int, LearningPoint], None] | None,
    ) -> None:
        weights.save(result, output)
        (trace,) = traces
        if seen is not None:
            seen.append((load(trace).arrivals, list(seeds), minutes, start, command))
        if progress:
            progress(0, LearningPoint(10, 1.0, 2.0, math.nan, 0.5, 0.1, 3.0))

    return train


def test_too_little_history_trains_nothing(tmp_path: Path) -> None:
    seen: list[Any] = []
    few = replace(HISTORY, arrivals=HISTORY.arrivals[:50])
    done = retrain(few, tmp_path / "new.npz", train=training_to(weights.pretrained(), seen))
    assert done.reason == "not trained: 50 jobs have ended in this pool, and 200 are needed"
    assert not seen
    assert not list(tmp_path.iterdir())
    assert "| --- |" not in build_report(done, False)


def test_better_weights_are_kept_and_have_not_seen_the_judging_jobs(tmp_path: Path) -> None:
    weights.save(reversed_weights(), tmp_path / "old.npz")
    seen: list[Any] = []
    points: list[Any] = []
    done = retrain(
        HISTORY,
        tmp_path / "rl" / "new.npz",
        {"weights": str(tmp_path / "old.npz"), "lease_s": 60.0},
        train=training_to(weights.pretrained(), seen),
        seeds=range(2),
        minutes=3.0,
        progress=lambda seed, point: points.append((seed, point.step)),
    )
    assert done.weights == tmp_path / "rl" / "new.npz"
    assert weights.load(done.weights).header == weights.pretrained().header
    assert done.judgements[NEW].turnaround_s < done.judgements[CURRENT].turnaround_s
    assert (done.learned, done.judged) == (240, 60)
    ((learned, seeds, minutes, start, command),) = seen
    assert (start.skip == reversed_weights().network.skip).all()  # it continues from the current ones
    assert [arrival.job.id for arrival in learned] == [each.job.id for each in HISTORY.arrivals[:240]]
    assert (seeds, minutes, command) == ([0, 1], 3.0, "rl-retrain on 240 recorded jobs")
    assert points == [(0, 10)]
    report = build_report(done, applied=False)
    assert "| new weights |" in report
    assert f"gpu-flows policy set rl --option weights={done.weights}" in report
    assert "To use them" not in build_report(done, applied=True)


@pytest.mark.parametrize("result", ["worse", "equal"])
def test_weights_that_are_not_better_are_not_kept(tmp_path: Path, result: str) -> None:
    found = reversed_weights() if result == "worse" else weights.pretrained()
    done = retrain(HISTORY, tmp_path / "new.npz", train=training_to(found))
    assert done.weights is None
    assert done.reason.startswith("not replaced: the mean turnaround is")
    assert not list(tmp_path.iterdir())


def test_the_weights_that_a_training_began_with_do_not_replace_themselves(tmp_path: Path) -> None:
    current = weights.pretrained()
    began_with = replace(current, header=replace(current.header, steps=0))
    done = retrain(HISTORY, tmp_path / "new.npz", train=training_to(began_with))
    assert done.reason == "not replaced: the training found nothing better"
    assert not list(tmp_path.iterdir())


def test_objections() -> None:
    good = {NEW: Judgement(90, 1000), CURRENT: Judgement(100, 900), FIFO: Judgement(200, 950)}
    assert find_objection(good) == ""
    assert "under fifo" in find_objection({**good, NEW: Judgement(90, 1100)})
    assert "failed with them: oops" in find_objection({**good, NEW: Judgement(90, 1000, "oops")})
    assert find_objection({**good, NEW: Judgement(math.nan, math.nan)})  # no job finished
    assert build_report(Retrained("x", None, 1, 1, {NEW: Judgement(math.nan, 1)}), False)


def test_a_trace_is_written_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    write_trace(path, HISTORY.arrivals)
    found = load(path).arrivals
    assert [(a.job.gpus, a.job.kind, round(a.duration_s, 6)) for a in found] == [
        (a.job.gpus, a.job.kind, round(a.duration_s, 6)) for a in HISTORY.arrivals
    ]


# -- the warehouse ----------------------------------------------------------------------------


def test_history_is_read_from_the_warehouse(tmp_path: Path) -> None:
    simulation = simulate(HISTORY.arrivals, declare("2x4:A30:24@1"), make_policy("fifo"))
    database = tmp_path / "warehouse.duckdb"
    experiment = Experiment.of("past", {}, HISTORY.arrivals)
    write_simulations(database, experiment, {"fifo": simulation}, T)
    found = History.read(database, pool_of(database))
    assert len(found.arrivals) == 300
    assert [(node.name, len(node.devices), node.rack) for node in found.nodes] == [
        ("node-1", 4, "rack-1"),
        ("node-2", 4, "rack-2"),
    ]
    assert found.nodes[0].devices[0].model == "A30"


def pool_of(database: Path) -> str:
    from gpu_flows.analytics.query_runner import run_query

    return str(run_query(database, "select any_value(pool) from jobs").rows[0][0])


def test_devices_that_are_gone_are_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    recorder = store.recorder()
    recorder.write(NodeSeen(T, "gpu", "a", "r1"))
    for index in (0, 1):
        recorder.write(DeviceSeen(f"d{index}", "gpu", "a", index, "T4", 16_000, T))
    recorder.write(DeviceSeen("other", "else", "b", 0, "T4", 16_000, T))
    recorder.write(DeviceEvent(T + 1, "d1", "a", "gone"))
    recorder.close()
    (node,) = History.read(store.database, "gpu").nodes
    assert not History.read(store.database, "gpu").arrivals
    assert [device.id for device in node.devices] == ["d0"]
    assert node.rack == "r1"


def test_what_a_point_does_not_know_is_null() -> None:
    fact = LearningStep.of(LearningPoint(5, math.nan, 1.0, 2.0, math.nan, 0.1, 9.0), "t", 3, T)
    assert (fact.training, fact.seed, fact.step, fact.time) == ("t", 3, 5, T)
    assert (fact.reward, fact.entropy, fact.turnaround_s, fact.seconds) == (None, None, 1.0, 9.0)
