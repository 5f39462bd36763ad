"""Ways to lay a job out over idle devices, and how much the network slows the job down on each.

Of all ways in one tier two are compared: as few nodes as possible, and equal numbers of devices on each node
and in each rack. Equal parts may communicate faster, because no part waits for a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import MOST_REQUESTS, Cluster
from gpu_flows.schedulers.model import Device, Job, Tier
from gpu_flows.schedulers.network.shape import NetworkSlowdown, Shape, no_slowdown
from gpu_flows.schedulers.placement.base import ALL_NODES, available_devices, candidate_nodes
from gpu_flows.schedulers.placement.linked import prefer_linked
from gpu_flows.schedulers.placement.pack import fullest_first
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.policy_support.tiers import EXCLUSIVE, find_in_tier


def slowdown_on(job: Job, devices: tuple[Device, ...], state: State) -> float:
    """Return how many times as long the job takes on these devices as on one node."""
    return state.network(job, state.cluster.shape(devices))


def find_nearest(
    job: Job, tier: Tier, state: State, among: NodeSet = ALL_NODES
) -> tuple[tuple[Device, ...], float]:
    """Return idle devices within a tier on which the job is slowed down least, and the slowdown."""
    best: tuple[tuple[Device, ...], float] = ((), math.inf)
    found = find_in_tier(job, tier, state.cluster, among)
    if found:
        best = found, slowdown_on(job, found, state)
        if best[1] > 1:
            even = _find_even(job, tier, state.cluster, among)
            if even and slowdown_on(job, even, state) < best[1]:
                best = even, slowdown_on(job, even, state)
    return best


def _find_even(job: Job, tier: Tier, cluster: Cluster, among: NodeSet) -> tuple[Device, ...]:
    """Return devices in equal numbers on as few nodes as possible of as few racks as possible, or none."""
    for racks, nodes_each, gpus_each in _even_parts(job.gpus, tier, len(cluster.racks)):
        able = candidate_nodes(job, gpus_each, cluster, EXCLUSIVE, among)
        if able.bit_count() < racks * nodes_each:
            continue
        near = [rack.nodes & able for rack in cluster.racks.values()]
        enough = sorted((nodes for nodes in near if nodes.bit_count() >= nodes_each), key=int.bit_count)
        found = [
            device for nodes in enough[:racks] for device in _take(job, nodes, nodes_each, gpus_each, cluster)
        ]
        if len(found) == job.gpus:
            return prefer_linked(job, tuple(found), cluster, EXCLUSIVE)
    return ()


def _take(job: Job, nodes: NodeSet, count: int, gpus_each: int, cluster: Cluster) -> list[Device]:
    """Return so many devices from each of the fullest nodes of a set; fewer if there are not enough."""
    accepts_all = cluster.eligible(job).accepts_all
    found: list[Device] = []
    for node in fullest_first(nodes, cluster, gpus_each):
        devices = available_devices(node, job, gpus_each, EXCLUSIVE, bool(accepts_all & node.bit))
        if len(devices) == gpus_each:
            found += devices
            if len(found) == count * gpus_each:
                break
    return found


def _even_parts(gpus: int, tier: Tier, racks: int) -> Iterator[tuple[int, int, int]]:
    """Yield racks, nodes in each rack, and devices on each node, that divide the devices evenly."""
    for number in range(1, 2) if tier < Tier.CLUSTER else range(2, racks + 1):
        for nodes_each in range(1, gpus // number + 1):
            if gpus % (number * nodes_each) == 0:
                yield number, nodes_each, gpus // (number * nodes_each)


class LeastSlowdowns:
    """How much each tier slows a job down at least, on an empty cluster."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[float, float, float]] = {}
        self._version = -1
        self._network: NetworkSlowdown = no_slowdown

    def of(self, job: Job, state: State) -> tuple[float, float, float]:
        """Return the least slowdown in one node, in one rack and across racks; infinity where the job does
        not fit."""
        if not job.may_span_nodes or job.gpus < 2:
            return 1.0, math.inf, math.inf
        cluster = state.cluster
        is_changed = cluster.service_version != self._version or state.network != self._network
        if is_changed or len(self._known) > MOST_REQUESTS:
            self._known.clear()
            self._version, self._network = cluster.service_version, state.network
        found = self._known.get((job.kind, job.request))
        if found is None:
            node, rack, racks = (
                min(
                    (state.network(job, shape) for shape in self._shapes(job, tier, cluster)),
                    default=math.inf,
                )
                for tier in Tier
            )
            found = self._known[job.kind, job.request] = node, rack, racks
        return found

    def _shapes(self, job: Job, tier: Tier, cluster: Cluster) -> Iterator[Shape]:
        able = cluster.eligible(job).nodes
        counts: dict[str, list[int]] = {}
        for node in filter(lambda each: each.up, cluster.nodes_in(able)):
            usable = sum(1 for each in node.devices if each.healthy and job.accepts(each.device))
            counts.setdefault(node.node.rack, []).append(usable)
        per_rack = [sorted(rack, reverse=True) for rack in counts.values()]
        for number, nodes_each, gpus_each in _even_parts(job.gpus, tier, len(per_rack)):
            fitting = [rack for rack in per_rack if sum(count >= gpus_each for count in rack) >= nodes_each]
            if len(fitting) >= number and (nodes_each == 1 and number == 1) == (tier == Tier.NODE):
                yield ((gpus_each,) * nodes_each,) * number
        most = job.gpus - 1  # of its devices on one node or in one rack, or they were in a narrower tier
        if tier == Tier.RACK:
            for rack in per_rack:
                yield from _fill([[min(count, most) for count in rack]], job.gpus)
        elif tier == Tier.CLUSTER:
            largest_first = sorted(per_rack, key=sum, reverse=True)
            yield from _fill([_first(most, rack) for rack in largest_first], job.gpus)


def _fill(racks: list[list[int]], gpus: int) -> Iterator[Shape]:
    """Yield the shape of a job that fills these racks node by node, if it fits."""
    shape: list[tuple[int, ...]] = []
    for rack in racks:
        nodes = _first(gpus, rack)
        gpus -= sum(nodes)
        if nodes:
            shape.append(tuple(sorted(nodes)))
    if not gpus:
        yield tuple(sorted(shape))


def _first(gpus: int, rack: list[int]) -> list[int]:
    """Return how many devices a job takes on each node of a rack until it has so many."""
    taken: list[int] = []
    for count in rack:
        if gpus > 0 < count:
            taken.append(min(count, gpus))
            gpus -= taken[-1]
    return taken
