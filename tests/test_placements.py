"""The devices that each placement chooses, and that it finds devices whenever there are enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpu_flows.schedulers.cluster.device_links import parse_links
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Node
from gpu_flows.schedulers.placement.options import PLACEMENTS, PlacementOptions

GB = 1024


def cluster(spec: str, *busy: int) -> Cluster:
    """Return a cluster with this number of held devices on the first node, the second node, and so on."""
    made = Cluster(declare(spec))
    for node, count in zip(made, busy, strict=False):
        for state in node.devices[:count]:
            made.allocate(Job(f"holder of {state.device.id}"), (state.device,))
    return made


def find(placement: str, job: Job, on: Cluster, **options: Any) -> dict[str, list[int]]:
    """Return the indexes of the chosen devices by node."""
    devices = PlacementOptions(placement=placement, **options).place(job, on)
    assert not devices or not on.allocation_error(job, devices)
    chosen: dict[str, list[int]] = {}
    for device in devices:
        chosen.setdefault(device.node, []).append(device.index)
    return chosen


@pytest.mark.parametrize(
    ("placement", "node"),
    [
        ("first_fit", "node-1"),
        ("pack", "node-2"),
        ("best_fit", "node-2"),
        ("topology", "node-2"),
        ("spread", "node-3"),
    ],
)
def test_node_is_chosen_by_its_idle_devices(placement: str, node: str) -> None:
    on = cluster("4x4", 1, 2, 0, 3)  # idle: 3, 2, 4, 1
    assert list(find(placement, Job("a", gpus=2), on)) == [node]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_job_larger_than_a_node_spans_nodes_only_if_it_may(placement: str) -> None:
    on = cluster("2x4", 2, 2)
    assert find(placement, Job("a", gpus=3), on) == {}
    spanning = find(placement, Job("b", gpus=3, may_span_nodes=True), on)
    assert sum(map(len, spanning.values())) == 3
    assert find(placement, Job("c", gpus=5, may_span_nodes=True), on) == {}


def test_pack_uses_the_fewest_nodes_and_takes_the_rest_from_the_fullest() -> None:
    on = cluster("5x4", 3, 3, 0, 2, 0)  # idle: 1, 1, 4, 2, 4
    assert find("pack", Job("a", gpus=6, may_span_nodes=True), on) == {
        "node-3": [0, 1, 2, 3],
        "node-4": [2, 3],
    }


def test_best_fit_uses_the_last_idle_devices_of_many_nodes() -> None:
    on = cluster("5x4", 3, 3, 0, 2, 0)
    chosen = find("best_fit", Job("a", gpus=6, may_span_nodes=True), on)
    assert chosen == {"node-1": [3], "node-2": [3], "node-4": [2, 3], "node-3": [0, 1]}


def test_pack_prefers_one_rack_among_equally_few_nodes() -> None:
    on = cluster("6x4@2", 0, 4, 1, 0, 0, 0)  # idle: 4 0 | 3 4 | 4 4
    assert set(find("pack", Job("a", gpus=8, may_span_nodes=True), on)) == {"node-5", "node-6"}
    # of two racks with enough devices, the fuller one
    assert set(find("pack", Job("b", gpus=7, may_span_nodes=True), on)) == {"node-3", "node-4"}


def test_pack_uses_another_rack_to_save_a_node_and_topology_does_not() -> None:
    on = cluster("6x4@3", 2, 2, 2, 0, 4, 4)  # idle: 2 2 2 | 4 0 0
    job = Job("a", gpus=6, may_span_nodes=True)
    assert find("pack", job, on) == {"node-4": [0, 1, 2, 3], "node-1": [2, 3]}
    assert set(find("topology", job, on)) == {"node-1", "node-2", "node-3"}


def test_topology_takes_the_fullest_sufficient_rack_or_the_fewest_racks() -> None:
    on = cluster("8x4@2", 0, 0, 0, 2, 3, 3, 4, 3)  # idle: 8 | 6 | 2 | 1
    assert set(find("topology", Job("a", gpus=6, may_span_nodes=True), on)) == {"node-3", "node-4"}
    far = find("topology", Job("b", gpus=13, may_span_nodes=True), on)
    assert {on.nodes[name].rack.name for name in far} == {"rack-1", "rack-2"}


def test_shared_devices_are_chosen_by_their_free_memory() -> None:
    on = cluster("3x2:A100:80")
    for device, memory_gb in (("node-1-0", 30), ("node-2-0", 50), ("node-2-1", 20), ("node-3-0", 60)):
        holder = Job(f"holder of {device}", memory_mb=memory_gb * GB)
        on.allocate(holder, (on.devices[f"SIM-{device}"].device,))  # free: 50 80 | 30 60 | 20 80
    job = Job("a", memory_mb=20 * GB)
    assert find("pack", job, on, sharing="shared") == {"node-2": [0]}  # no idle device there
    assert find("best_fit", job, on, sharing="shared") == {"node-3": [0]}  # no memory remains
    assert find("spread", job, on, sharing="shared") == {"node-1": [1]}  # the most room, on the emptiest node
    assert find("spread", Job("b"), on, sharing="shared") == {"node-1": [1]}
    assert find("best_fit", Job("c", gpus=2, memory_mb=55 * GB), on, sharing="shared") == {}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_devices_above_the_utilization_threshold_are_skipped(placement: str) -> None:
    on = cluster("1x2:A100:80")
    job = Job("a", memory_mb=10 * GB)
    for index, state in enumerate(on.nodes["node-1"].devices):
        on.allocate(Job(f"holder {index}", memory_mb=(40 - index) * GB), (state.device,))
    for hot, cool in ((0, 1), (1, 0)):
        for index, state in enumerate(on.nodes["node-1"].devices):
            state.utilization = 95.0 if index == hot else 10.0
        assert find(placement, job, on, sharing="shared") == {"node-1": [cool]}


def test_nodes_without_free_processors_are_skipped() -> None:
    nodes = [replace(node, cpus=8.0, ram_mb=64 * GB) for node in declare("3x4")]
    for placement in PLACEMENTS:
        on = Cluster(nodes)
        on.allocate(Job("greedy", gpus=1, cpus=7.0), (on.nodes["node-1"].devices[0].device,))
        on.allocate(Job("hungry", gpus=1, ram_mb=60 * GB), (on.nodes["node-2"].devices[0].device,))
        assert list(find(placement, Job("a", cpus=2.0, ram_mb=8 * GB), on)) == ["node-3"]


# -- random clusters --------------------------------------------------------------------------


def mixed_nodes(random: Random) -> list[Node]:
    """Return racks of different nodes, some with devices of two models."""
    nodes = []
    for number in range(random.randint(1, 9)):
        name = f"n{number}"
        kinds = random.choice(([("V100", 16)], [("A100", 80)], [("V100", 16), ("A100", 80)]))
        devices = tuple(
            Device(f"{name}-{index}", name, index, model, memory_gb * GB)
            for index in range(random.randint(1, 4))
            for model, memory_gb in [kinds[index % len(kinds)]]
        )
        cpus = random.choice((0.0, 4.0, 16.0))
        links = parse_links(random.choice(("", "nvlink:2")) if len(devices) > 1 else "", len(devices))
        nodes.append(Node(name, devices, f"r{number // 3}", cpus, links=links))
    return nodes


def random_job(random: Random, name: str) -> Job:
    return Job(
        name,
        gpus=random.choice((1, 1, 1, 2, 3, 6)),
        memory_mb=random.choice((0, 0, 5, 10, 30)) * GB,
        models=random.choice(((), (), ("A100",))),
        may_span_nodes=random.random() < 0.4,
        cpus=random.choice((0.0, 1.0, 3.0)),
    )


@pytest.mark.parametrize("sharing", ["exclusive", "shared"])
def test_every_placement_finds_valid_devices_whenever_there_are_enough(sharing: str) -> None:
    found = 0
    for seed in range(60):
        random = Random(seed)
        on = Cluster(mixed_nodes(random))
        holders: list[Job] = []
        for step in range(40):
            job = random_job(random, f"{step}")
            places = {
                name: PlacementOptions.model_validate({"placement": name, "sharing": sharing}).place(job, on)
                for name in PLACEMENTS
            }
            for name, devices in places.items():
                assert bool(devices) == bool(places["first_fit"]), (seed, step, name, job)
                assert not devices or not on.allocation_error(job, devices), (seed, step, name, job)
            devices = places[random.choice(list(places))]
            if devices:
                found += 1
                on.allocate(job, devices)
                holders.append(job)
            if holders and random.random() < 0.4:
                on.release(holders.pop(random.randrange(len(holders))))
            if random.random() < 0.1:
                on.mark_device(random.choice(list(on.devices)), random.random() < 0.7)
            if random.random() < 0.05:
                on.mark_node(random.choice(list(on.nodes)), random.random() < 0.7)
    assert found > 500


def test_only_nodes_of_the_set_are_used() -> None:
    for placement in PLACEMENTS:
        on = cluster("4x4@2", 0, 1, 2, 0)
        among = on.node_set(["node-2", "node-3"])
        options = PlacementOptions(placement=placement)
        for job in (Job("a", gpus=2), Job("b", gpus=5, may_span_nodes=True)):
            devices = options.place(job, on, among=among)
            assert {device.node for device in devices} <= {"node-2", "node-3"}
            assert len(devices) == job.gpus


# -- node sets of the cluster -----------------------------------------------------------------


def idle_in_racks(on: Cluster) -> dict[str, int]:
    return {
        name: sum(node.idle for node in on.nodes_in(rack.nodes) if node.up) for name, rack in on.racks.items()
    }


def test_idle_devices_of_racks_and_changed_nodes_are_tracked() -> None:
    random = Random(1)
    on = Cluster(declare("12x4@4"))
    holders: list[tuple[Job, tuple[Device, ...]]] = []
    for number in range(300):
        before, touched = on.version, set[str]()
        if holders and random.random() < 0.5:
            job, devices = holders.pop(random.randrange(len(holders)))
            touched |= {device.node for device in devices}
            on.release(job)
        else:
            job = Job(f"{number}", gpus=random.randint(1, 6), may_span_nodes=True)
            devices = PlacementOptions(placement="any").place(job, on)
            if devices:
                on.allocate(job, devices)
                holders.append((job, devices))
                touched |= {device.node for device in devices}
        device = random.choice(list(on.devices.values())).device
        if on.mark_device(device.id, random.random() < 0.8):
            touched.add(device.node)
        if random.random() < 0.1:
            name = f"node-{random.randint(1, 12)}"
            on.mark_node(name, random.random() < 0.7)
            touched.add(name)
        assert {node.name for node in on.changed_since(before)} == touched
        assert {name: rack.idle for name, rack in on.racks.items()} == idle_in_racks(on)
    on.set_nodes(declare("5x4@2"))
    assert list(on.racks) == ["rack-1", "rack-2", "rack-3"]
    assert {name: rack.idle for name, rack in on.racks.items()} == idle_in_racks(on)


def test_group_by_idle() -> None:
    on = cluster("5x4", 4, 1, 0, 1, 2)
    everywhere = on.node_set(on.nodes)

    def named(parts: Iterable[tuple[int, int]]) -> list[tuple[int, list[str]]]:
        return [(idle, [node.name for node in on.nodes_in(nodes)]) for idle, nodes in parts]

    assert named(on.group_by_idle(everywhere)) == [
        (0, ["node-1"]),
        (2, ["node-5"]),
        (3, ["node-2", "node-4"]),
        (4, ["node-3"]),
    ]
    assert named(on.group_by_idle(everywhere, 3)) == [(3, ["node-2", "node-4"]), (4, ["node-3"])]
    assert on.group_by_idle(everywhere, 9) == []
