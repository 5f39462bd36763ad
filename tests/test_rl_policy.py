"""Policy rl: the network, its weights and the policy that serves jobs by its scores."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.learning.features import LEASE_S, LIMIT, NAMES
from gpu_flows.schedulers.learning.lifetimes import Lifetimes
from gpu_flows.schedulers.learning.network import ROWS, make_network
from gpu_flows.schedulers.learning.weights import Header, Weights, WeightsError, load, parse, pretrained, save
from gpu_flows.schedulers.model import Action, Job, Preempt, Start
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.summary import summarize

ANY = (-10.0,) * len(NAMES), (10.0,) * len(NAMES)


def untrained(file: Path, low: tuple[float, ...] = ANY[0], high: tuple[float, ...] = ANY[1]) -> str:
    """Write the weights of a network that scores jobs by the Gittins index per device."""
    header = Header("a test", 0, 0, "turnaround", ("pack", "spread"), low, high)
    save(Weights(header, make_network(2)), file)
    return str(file)


def started(actions: list[Action]) -> list[str]:
    return [action.job.id for action in actions if isinstance(action, Start)]


# -- run times --------------------------------------------------------------------------------


def test_the_outlook_of_a_job_follows_those_that_ran_as_long() -> None:
    lifetimes = Lifetimes()
    for seconds in [10.0] * 50 + [1000.0] * 50:
        lifetimes.learn(seconds)
    fresh, old = lifetimes.outlook(0.0), lifetimes.outlook(200.0)
    assert fresh.rate > 10 * old.rate  # half of all jobs end within ten seconds
    assert old.left_s == pytest.approx(800, rel=0.2)
    assert old.alive == pytest.approx(0.5, abs=0.05)


def test_a_job_that_outlasted_all_others_is_expected_to_take_as_long_again() -> None:
    lifetimes = Lifetimes()
    for seconds in (10.0, 20.0, 30.0):
        lifetimes.learn(seconds)
    assert lifetimes.outlook(500.0).left_s == 500.0
    assert Lifetimes().outlook(1e5).left_s == 1e5  # also if no job has ended


# -- network and weights ----------------------------------------------------------------------


def test_neither_order_nor_number_of_jobs_changes_a_score() -> None:
    rows = np.random.default_rng(0).normal(size=(3 * ROWS + 5, len(NAMES))).astype(np.float32)
    network = make_network(2)._replace(w3=np.ones((32, 3), np.float32))
    together = network.evaluate(rows)
    assert np.allclose(network.evaluate(rows[::-1])[::-1], together, atol=1e-4)
    assert np.allclose(network.evaluate(rows[:1]), together[:1], atol=1e-4)
    assert network.evaluate(rows[:0]).shape == (0, 3)


def test_weights_come_back_as_they_were_and_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    untrained(first), untrained(second)
    assert first.read_bytes() == second.read_bytes()
    found = load(first)
    assert found.header.placements == ("pack", "spread")
    assert all(np.array_equal(a, b) for a, b in zip(found.network, make_network(2), strict=True))


def test_weights_that_do_not_fit_are_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "weights.npz"
    untrained(file)
    weights = load(file)
    save(replace(weights, header=replace(weights.header, features=("other",))), file)
    with pytest.raises(WeightsError, match="another version"):
        load(file)
    save(replace(weights, network=weights.network._replace(b3=np.full(3, np.nan, np.float32))), file)
    with pytest.raises(WeightsError, match="b3 must be finite"):
        load(file)
    with pytest.raises(WeightsError, match="not a file of"):
        parse(b"no weights", "x")
    with pytest.raises(WeightsError, match="cannot be read"):
        load(tmp_path / "missing.npz")


@pytest.mark.parametrize(
    "changes",
    [
        {"low": None},
        {"low": ["a"] * len(NAMES)},
        {"low": [float("nan")] * len(NAMES)},
        {"placements": 3},
        {"placements": []},
        {"placements": ["nope", "pack"]},
        {"unknown": 1},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    untrained(file := tmp_path / "weights.npz")
    arrays = dict(np.load(file))
    header = {**json.loads(arrays["header"].tobytes()), **changes}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(file, **arrays)
    with pytest.raises(WeightsError):
        load(file)


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    """The path is typed into a form, and the worker reads it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    np.savez(tmp_path / "list.npz", header=np.frombuffer(b"[]", np.uint8))
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path, tmp_path / "empty", tmp_path / "list.npz", "a\0b"):
        with pytest.raises(WeightsError):
            load(Path(path))


def test_a_path_may_begin_with_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    untrained(tmp_path / "own.npz")
    assert load(Path("~/own.npz")).header.version


def test_a_pickled_file_is_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", header=np.array([{"a": 1}], dtype=object))
    with pytest.raises(WeightsError, match="not a file of"):
        load(tmp_path / "bad.npz")


def test_the_package_has_weights_that_say_how_they_were_made() -> None:
    header = pretrained().header
    assert header.command.startswith("gpu-flows rl train")
    assert header.steps > 0
    assert len(header.low) == len(header.high) == len(NAMES)
    assert set(header.low) != {-LIMIT}, "it was trained on something"


# -- the policy -------------------------------------------------------------------------------


def test_of_unknown_jobs_the_narrow_one_runs_first(tmp_path: Path) -> None:
    policy = make_policy("rl", {"weights": untrained(tmp_path / "w.npz")})
    engine = Engine(declare("1x4"), policy, can_preempt=True)
    engine.submit(Job("wide", gpus=4))
    engine.submit(Job("narrow"))
    assert started(engine.tick(0.0)) == ["narrow"]


def test_a_job_is_preempted_for_a_better_one_once_its_lease_is_over(tmp_path: Path) -> None:
    policy = make_policy("rl", {"weights": untrained(tmp_path / "w.npz")})
    engine = Engine(declare("1x4"), policy, can_preempt=True)
    engine.submit(Job("wide", gpus=4))
    engine.tick(0.0)
    engine.submit(Job("narrow", 1.0))
    assert engine.tick(1.0) == []
    assert engine.wake_at is not None
    assert engine.wake_at >= LEASE_S
    stopped, *begun = engine.tick(engine.wake_at)
    assert isinstance(stopped, Preempt)
    assert started(begun) == ["narrow"]
    assert not engine.policy_error


def test_it_learns_from_jobs_that_end_which_kinds_are_short() -> None:
    """Ten long and ten short jobs take turns; when all have ended, a short one comes first."""
    engine = Engine(declare("1x1"), make_policy("rl"), can_preempt=True)
    now = 0.0
    for number in range(20):
        kind, seconds = ("long", 5_000.0) if number % 2 else ("short", 50.0)
        engine.submit(Job(f"{kind}-{number}", now, kind=kind))
        assert len(started(engine.tick(now))) == 1
        now += seconds
        engine.ended(f"{kind}-{number}")
        engine.tick(now)
    for kind in ("long", "short"):
        engine.submit(Job(kind, now, kind=kind))
    assert started(engine.tick(now)) == ["short"]


def test_unusable_weights_leave_the_decisions_to_the_fallback_which_is_said(tmp_path: Path) -> None:
    arrivals = generate("poisson:jobs=60,rate_per_hour=60", 1)
    policy = make_policy("rl", {"weights": str(tmp_path / "missing.npz")})
    found = simulate(arrivals, declare("2x4"), policy)
    classical = simulate(arrivals, declare("2x4"), make_policy("tiresias"))
    assert not found.policy_error
    assert summarize(found).avg_turnaround_s == summarize(classical).avg_turnaround_s
    assert policy.remark.startswith("tiresias decides in its place: Weights ")


def test_the_fallback_decides_where_the_network_was_not_trained(tmp_path: Path) -> None:
    high = tuple(0.1 if name == "queue" else 10.0 for name in NAMES)  # hardly any job ever waited
    policy = make_policy("rl", {"weights": untrained(tmp_path / "w.npz", high=high), "fallback": "fifo"})
    engine = Engine(declare("1x2"), policy, can_preempt=True)
    for number in range(8):
        engine.submit(Job(f"job-{number}", float(number)))
    assert started(engine.tick(10.0)) == ["job-0", "job-1"]
    assert policy.remark.startswith(
        "fifo decides in its place: the network was trained on other values of 'queue'"
    )
    for number in range(8):
        engine.withdraw(f"job-{number}")
    engine.submit(Job("another", 11.0))
    engine.tick(11.0)
    assert policy.remark == ""
    assert not engine.policy_error


def test_it_cannot_fall_back_on_itself() -> None:
    with pytest.raises(PolicyError, match="must be another one"):
        make_policy("rl", {"fallback": "rl"})


def test_on_a_busy_cluster_it_beats_fifo_without_a_longer_makespan() -> None:
    arrivals = generate("recurring:jobs=150,rate_per_hour=100", 4)
    ours, fifo = (summarize(simulate(arrivals, declare("4x4"), make_policy(name))) for name in ("rl", "fifo"))
    assert ours.finished == 150
    assert ours.avg_turnaround_s < 0.8 * fifo.avg_turnaround_s
    assert ours.makespan_s < 1.1 * fifo.makespan_s
