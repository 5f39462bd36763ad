"""The Dally study: the rules of its baselines on small clusters, and the direction of its results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from rack_pools import RACKS, started, wide

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Preempt, Progress
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import Arrival


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    """Import the benchmark, which is not part of the package."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    sys.path.insert(0, folder)
    yield importlib.import_module("dally")
    sys.path.remove(folder)


def pool(policy: Any, cluster: str = RACKS) -> Engine:
    return Engine(declare(cluster), policy, can_preempt=True)


def nodes_of(engine: Engine, job_id: str) -> int:
    return len(engine.running[job_id].nodes)


# -- Tiresias -----------------------------------------------------------------------------------


def test_dallys_tiresias_serves_the_least_gpu_seconds_first_after_a_lease(study: ModuleType) -> None:
    engine = pool(study.DallysTiresias(), "1x2")
    engine.submit(Job("long", gpus=2))
    engine.tick(0.0)
    engine.submit(Job("served", gpus=2, submitted=1.0), Progress(1, 100.0, 200.0, 100.0, stopped=0.0))
    engine.submit(Job("new", gpus=2, submitted=2.0))
    assert engine.tick(3599.0) == [], "it keeps its devices for a lease"
    actions = engine.tick(3600.0)
    assert [each.running.job.id for each in actions if isinstance(each, Preempt)] == ["long"]
    assert started(actions) == ["new"]


@pytest.mark.parametrize(
    ("kind", "held", "starts"),
    [
        ("vgg11", 7, False),  # one device is idle
        ("vgg11", 4, True),  # the mistake: as many devices are idle as a node has
        ("resnet50", 4, True),  # this model may be spread anyway
    ],
)
def test_dallys_tiresias_spreads_any_job_once_a_nodes_worth_is_idle(
    study: ModuleType, kind: str, held: int, starts: bool
) -> None:
    engine = pool(study.DallysTiresias())
    for number in range(held):
        engine.submit(Job(f"held-{number}", nodes=(f"node-{number % 4 + 1}",)))
    engine.tick(0.0)
    engine.submit(wide("wide", kind, submitted=1.0))
    assert (started(engine.tick(1.0)) == ["wide"]) is starts
    assert not starts or nodes_of(engine, "wide") == 2


@pytest.mark.parametrize(("kind", "starts"), [("vgg11", False), ("resnet50", True)])
def test_skew_aware_tiresias_consolidates_only_skewed_models(
    study: ModuleType, kind: str, starts: bool
) -> None:
    engine = pool(study.SkewAwareTiresias())
    for number in range(4):
        engine.submit(Job(f"held-{number}", nodes=(f"node-{number + 1}",), preemptible=False))
    engine.tick(0.0)
    engine.submit(wide("wide", kind, submitted=1.0))
    assert (started(engine.tick(1.0)) == ["wide"]) is starts


# -- Gandiva ------------------------------------------------------------------------------------


def test_gandiva_starts_the_oldest_job_that_fits_and_moves_it_to_one_node(study: ModuleType) -> None:
    engine = pool(study.Gandiva())
    for number, node in enumerate(declare(RACKS)):
        assert engine.adopt(Job(f"held-{number}"), node.devices[:1], 0.0, 1)
    engine.submit(wide("too wide", gpus=5, submitted=1.0))
    engine.submit(wide("wide", submitted=2.0))
    assert started(engine.tick(2.0)) == ["wide"]
    for number in range(4):
        engine.ended(f"held-{number}")
    engine.tick(3.0)
    assert nodes_of(engine, "wide") == 1


def test_packing_gandiva_pairs_jobs_only_while_no_device_is_idle(study: ModuleType) -> None:
    policy = study.PackingGandiva()
    arrivals = [Arrival(Job(name), 1000.0) for name in "abc"]
    (a, b, c) = (each.job for each in study.let_pack(arrivals, declare("1x2")))
    engine = pool(policy, "1x2")
    for job in (a, b):
        engine.submit(job)
    engine.tick(0.0)
    assert engine.cluster.idle == 0
    engine.submit(c)
    engine.submit(Job("wide", gpus=2, submitted=1.0))
    assert started(engine.tick(1.0)) == ["c"], "a job for two devices is not packed"
    (device,) = engine.running["c"].devices
    assert len(engine.cluster.devices[device.id].holders) == 2
    alone = next(job for job in "ab" if engine.running[job].devices != (device,))
    engine.ended(alone)
    engine.tick(2.0)
    assert [len(each.holders) for each in engine.cluster.devices.values()] == [1, 1]


def test_packed_jobs_take_longer(study: ModuleType) -> None:
    nodes = declare("1x1")
    arrivals = study.let_pack([Arrival(Job(name), 100.0) for name in "ab"], nodes)
    conditions = study.Conditions(interference=study.PACKED)
    found = simulate(arrivals, nodes, study.PackingGandiva(), conditions)
    assert [job.ended for job in found.jobs] == pytest.approx([147.0, 147.0])


# -- the results --------------------------------------------------------------------------------


def test_the_direction_of_the_results(study: ModuleType) -> None:
    """One small batch under Dally's network: Dally is done before its Tiresias, ours serves jobs sooner."""
    workload = importlib.import_module("dally_workloads").generate("small", "16x8@4", 100, 0.0, Random(0))
    names = (study.TIRESIAS, study.TUNED, study.OURS)
    tiresias, dally, ours = (study.run(workload, name, "dally", 1.0, 0) for name in names)
    assert dally.makespan < 0.5 * tiresias.makespan
    assert dally.communication < tiresias.communication
    assert ours.turnaround < 0.85 * dally.turnaround
    assert ours.makespan <= dally.makespan
