"""Fragmentation gradient descent, compared with its definition and with the figures of its paper."""

from __future__ import annotations

import gc
import importlib.util
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Node
from gpu_flows.schedulers.placement.fragmentation import LOSS_STEP
from gpu_flows.schedulers.placement.options import PlacementOptions

UNIT = 1000  # of memory: parts of devices are round numbers


def place(job: Job, on: Cluster, sharing: str = "shared") -> tuple[Device, ...]:
    options = PlacementOptions.model_validate({"placement": "fragmentation", "sharing": sharing})
    return options.place(job, on)


def nodes(*shapes: tuple[int, float]) -> list[Node]:
    """Return nodes with these numbers of devices and processors."""
    return [
        Node(
            f"n{number}",
            tuple(Device(f"n{number}-{index}", f"n{number}", index, "G", UNIT) for index in range(gpus)),
            cpus=cpus,
        )
        for number, (gpus, cpus) in enumerate(shapes)
    ]


def usual(on: Cluster, ask: Job, sharing: str = "shared") -> None:
    """Let the placement learn from many such jobs, and start none of them."""
    for number in range(30):
        place(replace(ask, id=f"usual {number}"), on, sharing)


# -- the definition ---------------------------------------------------------------------------


def fragmentation(on: Cluster, mix: Sequence[Job]) -> float:
    """Return F as the paper defines it: free room, in devices, that a job of the mix cannot use."""
    total = 0.0
    for node in on:
        for job in mix:
            free = [state.free_mb for state in node.devices]
            usable = [room for room in free if room >= (job.memory_mb or UNIT)]
            serves = len(usable) >= job.gpus and node.has_host_room(job)
            total += sum(free) - (sum(usable) if serves else 0)
    return total / len(mix) / UNIT


def places(job: Job, node: NodeState) -> Iterator[tuple[Device, ...]]:
    if node.has_host_room(job):
        fitting = [state.device for state in node.devices if state.fits(job)]
        yield from combinations(fitting, job.gpus)


def test_jobs_are_placed_where_fragmentation_grows_least() -> None:
    compared = 0
    for seed in range(150):
        random = Random(seed)
        shapes = [(random.choice((1, 2, 4)), random.choice((0.0, 8.0, 16.0))) for _ in range(4)]
        on = Cluster(nodes(*shapes))
        asks = [
            Job(f"{number}", gpus=gpus, memory_mb=part, cpus=random.choice((0.0, 1.0, 4.0)))
            for number in range(20)
            for gpus, part in [random.choice(((1, 100), (1, 300), (1, 500), (1, 700), (1, 0), (2, 0)))]
        ]
        for number, ask in enumerate(asks[:8]):  # some devices are held already
            held = random.choice([(), *(devices for node in on for devices in places(ask, node))])
            if held:
                on.allocate(replace(ask, id=f"holder {number}"), held)
        mix = asks[8:]  # the twelfth job updates the mix
        for ask in mix:
            chosen = place(ask, on)
        before = fragmentation(on, mix)
        growth = {}
        for node in on:
            for devices in places(ask, node):
                on.allocate(ask, devices)
                growth[frozenset(devices)] = fragmentation(on, mix) - before
                on.release(ask)
        assert bool(chosen) == bool(growth)
        if chosen:
            compared += len(growth) > 1
            here = min(growth[each] for each in growth if {d.node for d in each} == {chosen[0].node})
            assert growth[frozenset(chosen)] == pytest.approx(here), seed
            assert growth[frozenset(chosen)] < min(growth.values()) + LOSS_STEP + 1e-6, seed
    assert compared > 80


# -- examples ---------------------------------------------------------------------------------


def test_gap_that_no_usual_job_can_use_is_avoided() -> None:
    """A small gap is not better by itself: three tenths are lost if every job asks for half a device."""
    for ask, best in ((500, "n1-0"), (300, "n0-0")):
        on = Cluster(nodes((1, 0.0), (1, 0.0), (1, 0.0)))
        on.allocate(Job("x", memory_mb=200), (on.devices["n0-0"].device,))  # 800 left: 300 after the job
        usual(on, Job("", memory_mb=ask))
        assert [device.id for device in place(Job("a", memory_mb=500), on)] == [best]


def test_jobs_without_processors_use_nodes_without_free_processors_first() -> None:
    on = Cluster(nodes((4, 32.0), (4, 32.0)))
    on.allocate(Job("hog", cpus=31.0), (on.devices["n1-0"].device,))
    usual(on, Job("", cpus=4.0))
    assert {device.node for device in place(Job("a", gpus=2), on)} == {"n1"}


def test_nodes_that_the_usual_jobs_require_are_kept_free() -> None:
    on = Cluster(nodes((2, 0.0), (2, 0.0)))
    usual(on, Job("", nodes=("n0",)))
    assert [device.node for device in place(Job("a"), on)] == ["n1"]


def test_whole_nodes_are_kept_free_for_large_jobs() -> None:
    on = Cluster(declare("3x4"))
    on.allocate(Job("x", gpus=2), tuple(state.device for state in on.nodes["node-2"].devices[:2]))
    usual(on, Job("", gpus=4), "exclusive")
    assert {device.node for device in place(Job("a"), on, "exclusive")} == {"node-2"}


def test_mix_is_learned_for_each_cluster_and_freed_with_it() -> None:
    halves, thirds = (Cluster(nodes((1, 0.0), (1, 0.0))) for _ in range(2))
    for on, ask in ((halves, 500), (thirds, 300)):
        on.allocate(Job("x", memory_mb=200), (on.devices["n0-0"].device,))
        usual(on, Job("", memory_mb=ask))
    job = Job("a", memory_mb=500)
    assert [place(job, on)[0].id for on in (halves, thirds, halves)] == ["n1-0", "n0-0", "n1-0"]
    gone = weakref.ref(halves)
    del halves, on
    gc.collect()
    assert gone() is None


def test_new_nodes_are_used_after_a_new_declaration() -> None:
    on = Cluster(nodes((2, 0.0)))
    assert place(Job("a", gpus=2), on)
    on.set_nodes(nodes((1, 0.0), (4, 0.0)))
    assert {device.node for device in place(Job("b", gpus=3), on)} == {"n1"}


# -- the published experiment -----------------------------------------------------------------


@pytest.fixture(scope="module")
def experiment() -> ModuleType:
    """Import the benchmark, which is not part of the package."""
    path = Path(__file__).parents[1] / "benchmarks" / "fgd.py"
    spec = importlib.util.spec_from_file_location("fgd_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_allocation_on_a_quarter_of_the_published_experiment(experiment: ModuleType) -> None:
    some_nodes, some_pods = experiment.read_cluster()[::4], experiment.read_pods()[::4]
    assert (len(experiment.read_cluster()), len(experiment.read_pods())) == (1213, 7064)
    filled = {
        placement: experiment.measure_allocation(placement, some_nodes, some_pods, seed=42)
        for placement in ("fragmentation", "best_fit", "spread")
    }
    published = experiment.read_published()["06-FGD"]
    assert published == pytest.approx((95.23, 95.39), abs=0.01)
    # the whole cluster is within 0.1 point (see the benchmark); a quarter of it varies more
    assert filled["fragmentation"] == pytest.approx(published, abs=0.7)
    assert filled["fragmentation"] > filled["best_fit"] > filled["spread"]
