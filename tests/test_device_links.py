"""Which devices of a node a job gets where some of them are linked more closely than others."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest

from gpu_flows.schedulers.cluster.device_links import device_links, group_pairs, parse_links
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import DeviceLink, Job, LinkGroup, Node
from gpu_flows.schedulers.placement.options import PLACEMENTS, PlacementOptions
from gpu_flows.schedulers.policy import make_policy, policies

PAIRS = "nvlink:2, numa:4"


def linked_nodes(spec: str, links: str) -> list[Node]:
    return [replace(node, links=parse_links(links, len(node.devices))) for node in declare(spec)]


def cluster(spec: str, links: str, *busy: int) -> Cluster:
    """Return a cluster with these devices of its first node held."""
    made = Cluster(linked_nodes(spec, links))
    states = next(iter(made)).devices
    for index in busy:
        made.allocate(Job(f"holder {index}"), (states[index].device,))
    return made


def choose(on: Cluster, job: Job, placement: str = "pack", **options: Any) -> list[int]:
    """Return the indexes of the devices that the placement chooses on one node."""
    devices = PlacementOptions(placement=placement, **options).place(job, on)
    assert not devices or not on.allocation_error(job, devices)
    assert len({device.node for device in devices}) <= 1
    return [device.index for device in devices]


# -- groups -----------------------------------------------------------------------------------


def test_links_are_parsed_to_groups_in_index_order() -> None:
    assert parse_links("nvlink:2,numa:4", 5) == (
        LinkGroup(DeviceLink.NVLINK, (0, 1)),
        LinkGroup(DeviceLink.NVLINK, (2, 3)),
        LinkGroup(DeviceLink.NUMA, (0, 1, 2, 3)),
    )
    assert parse_links("nvlink:2 numa:4", 5) == parse_links("nvlink:2,numa:4", 5)
    assert parse_links(" NVLink:4 ", 4) == (LinkGroup(DeviceLink.NVLINK, (0, 1, 2, 3)),)
    assert parse_links("", 8) == ()


@pytest.mark.parametrize("text", ["nvlink", "nvlink:1", "nvlink:9", "nvlink:x", "infiniband:4", "4"])
def test_wrong_links_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="nvlink:2, numa:4"):
        parse_links(text, 8)


def test_groups_of_pairs_give_back_every_link() -> None:
    for seed in range(50):
        random = Random(seed)
        pairs = {
            pair: random.choice(list(DeviceLink))
            for pair in combinations(range(8), 2)
            if random.random() < 0.6
        }
        found: dict[tuple[int, int], DeviceLink] = {}
        for group in group_pairs(pairs):
            for pair in combinations(group.devices, 2):
                found[pair] = max(group.link, found.get(pair, group.link))
        assert found == pairs


# -- the choice -------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(
    ("busy", "gpus", "chosen"),
    [
        ((0,), 2, [2, 3]),  # a pair, not 1 and 2
        ((0, 2), 2, [4, 5]),
        ((0, 5), 1, [1]),  # its partner is busy, so no pair is broken
        ((0, 5, 6, 7), 1, [4]),  # it has no other link either
        ((0,), 3, [1, 2, 3]),  # within one processor, and none of 4 to 7 is broken up
        ((0,), 4, [4, 5, 6, 7]),
        ((2,), 5, [3, 4, 5, 6, 7]),  # whole pairs, and the device without a partner
        ((0, 2, 4, 6), 2, [1, 3]),  # no pair is left: one processor
    ],
)
def test_every_placement_takes_the_devices_that_are_linked_best(
    placement: str, busy: tuple[int, ...], gpus: int, chosen: list[int]
) -> None:
    assert choose(cluster("1x8", PAIRS, *busy), Job("a", gpus=gpus), placement) == chosen


def test_devices_on_several_nodes_are_linked_on_each_of_them() -> None:
    on = cluster("2x4", "nvlink:2", 0, 1)
    [_, second] = on
    on.allocate(Job("holder"), (second.devices[0].device,))  # free: 2 3 | 1 2 3
    devices = PlacementOptions(placement="any").place(Job("a", gpus=4, may_span_nodes=True), on)
    assert [(device.node, device.index) for device in devices] == [
        ("node-1", 2),
        ("node-1", 3),
        ("node-2", 2),
        ("node-2", 3),
    ]


def test_shared_devices_stay_and_idle_ones_beside_them_are_linked() -> None:
    on = cluster("1x4:A100:80", "nvlink:2", 1)
    third = on.nodes["node-1"].devices[2]
    on.allocate(Job("half", memory_mb=40 * 1024), (third.device,))
    job = Job("a", gpus=2, memory_mb=20 * 1024)
    assert choose(on, job, sharing="shared") == [2, 3]  # first_fit order alone would add device 0


def test_an_unhealthy_hot_or_unaccepted_device_is_not_taken_for_its_links() -> None:
    on = cluster("1x4", "nvlink:2", 1)
    on.mark_device("SIM-node-1-3", False)
    assert choose(on, Job("a", gpus=2)) == [0, 2]
    hot = cluster("1x4", "nvlink:2", 1)
    hot.nodes["node-1"].devices[3].utilization = 95.0
    assert choose(hot, Job("a", gpus=2), sharing="shared") == [0, 2]
    [node] = linked_nodes("1x4", "nvlink:2")
    models = ("A100", "A100", "T4", "T4")
    devices = tuple(replace(d, model=model) for d, model in zip(node.devices, models, strict=True))
    mixed = Cluster([replace(node, devices=devices)])
    assert choose(mixed, Job("a", gpus=2, models=("T4",))) == [2, 3]
    assert choose(mixed, Job("b", gpus=3)) == [0, 1, 2]


def test_devices_that_are_linked_alike_need_no_choice() -> None:
    for links in ("", "nvlink:4", "nvlink:4, numa:4"):
        on = Cluster(linked_nodes("2x4", links))
        assert on.linked == 0
        assert choose(on, Job("a", gpus=2), "first_fit") == [0, 1]


@pytest.mark.parametrize(
    ("links", "gpus"),
    [(PAIRS, 8), ("nvlink:4, numa:8", 16), ("nvlink:3, numa:6", 12), ("switch:2, numa:4", 10)],
)
def test_the_choice_is_the_best_of_all(links: str, gpus: int) -> None:
    [node] = linked_nodes(f"1x{gpus}", links)
    found = device_links(node)
    assert found is not None
    random = Random(7)
    for _ in range(60):
        available = random.getrandbits(gpus) | 1
        count = random.randint(1, min(4, available.bit_count()))
        positions = [each for each in range(gpus) if available >> each & 1]
        chosen = found.choose(available, count)
        assert chosen.bit_count() == count
        assert not chosen & ~available
        every = (sum(1 << each for each in some) for some in combinations(positions, count))
        best = max(found.quality(some, available) for some in every)
        assert found.quality(chosen, available) == best, (bin(available), count)


def test_a_node_with_very_many_choices_gets_a_good_one() -> None:
    on = cluster("1x32", "nvlink:2, switch:4, numa:16", 0, 5)
    assert choose(on, Job("a", gpus=16)) == list(range(16, 32))
    assert choose(on, Job("b", gpus=4)) == [8, 9, 10, 11]


# -- policies that choose devices themselves ---------------------------------------------------


@pytest.mark.parametrize("policy", policies())
def test_every_policy_starts_jobs_on_linked_devices(policy: str) -> None:
    engine = Engine(linked_nodes("1x8", PAIRS), make_policy(policy), can_preempt=True)
    first = engine.cluster.nodes["node-1"].devices[0].device
    engine.adopt(Job("one", expected_s=1e6, preemptible=False), (first,), 0.0, 1)
    engine.submit(Job("two", gpus=2, submitted=1.0, expected_s=1000.0))
    now = 1.0
    for _ in range(100):  # some policies wait for a round, or for their turn
        engine.tick(now)
        now = max(now + 1.0, engine.wake_at or 0.0)
        if "two" in engine.running:
            break
    assert [device.index for device in engine.running["two"].devices] == [2, 3]


def test_backfilling_takes_linked_devices_beside_a_reservation() -> None:
    engine = Engine(linked_nodes("1x8", PAIRS), make_policy("conservative"))
    for name, index in (("a", 0), ("b", 5)):
        device = engine.cluster.nodes["node-1"].devices[index].device
        engine.adopt(Job(name, expected_s=100.0), (device,), 0.0, 1)
    engine.submit(Job("wide", gpus=7, submitted=1.0, expected_s=50.0))
    engine.submit(Job("brief", gpus=2, submitted=2.0, expected_s=50.0))
    engine.tick(2.0)
    assert [device.index for device in engine.running["brief"].devices] == [2, 3]


def test_a_job_that_shrinks_keeps_linked_devices() -> None:
    engine = Engine(linked_nodes("1x4", "nvlink:2"), make_policy("afs_l"), can_preempt=True)
    on = [engine.cluster.nodes["node-1"].devices[index].device for index in (1, 2, 3)]
    engine.adopt(Job("wide", gpus=3, min_gpus=1, max_gpus=3), tuple(on), 0.0, 1)
    engine.submit(Job("fixed", gpus=2, submitted=1.0))
    engine.tick(1.0)
    assert len(engine.running["wide"].devices) == 2
    assert {device.index for device in engine.running["wide"].devices} == {2, 3}
