"""Fragmentation gradient descent (FGD): place each job where it costs future jobs the least room.

Free room is a fragment for a job that cannot use it: too small a part of a device, too few devices
on the node, too few processors or too little host memory. With p the share of each request among the
future jobs, the fragmentation of a node is

    F = sum over requests of p * (free room of the node - room that the request can use)

and a job is placed where F grows least. The free room shrinks by the same amount on every node, so
this is the node where the usable room, weighted by p, shrinks least. That decrease is the loss.
(Q. Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", ATC 2023.)

The paper assumes a known distribution of the requests. This placement learns it from the jobs that it is
asked to place, for each cluster separately. The rest is caching for speed: nodes in the same state
share their losses, which are computed again only for nodes that changed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

from gpu_flows.schedulers.cluster.node_state import DeviceState, NodeSet, NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions
from gpu_flows.schedulers.placement.pack import Pack, find_on_fullest_node

JOBS_IN_MIX = 10_000  # the mix is learned from this many latest jobs
LOSS_STEP = 0.1  # devices: smaller differences of losses do not count, and the first node wins
MOST_CACHED = 100_000  # states of one kind of nodes whose usable room is cached

Free = tuple[int, ...]  # free MiB on each device of a node
State = tuple["NodeKind", float, float, Free]  # kind, free processors, free host memory, free devices


class Fragmentation(Pack):
    """Where the usual jobs lose the least room that they could use (FGD).

    `best_fit` looks at the devices alone and leaves the smallest gap, even if no job can use it; this
    placement knows which gaps the usual jobs can use. It skips devices above the utilization threshold.
    A job that has to span nodes is placed as by `pack`, because the rule does not cover such jobs.
    """

    name = "fragmentation"
    uses_utilization = True

    def __init__(self) -> None:
        self._views: dict[str, WeakKeyDictionary[Cluster, ClusterView]] = {
            "exclusive": WeakKeyDictionary(),
            "shared": WeakKeyDictionary(),
        }

    def find_within_node(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        views = self._views[sharing.sharing]
        view = views.get(cluster)
        if view is None:
            view = views[cluster] = ClusterView(sharing.sharing == "exclusive")
        view.update(cluster, job)
        best = view.find_nodes(job, gpus, nodes)
        for node in cluster.nodes_in(best):
            devices = view.find_devices(job, gpus, node, sharing.utilization_threshold)
            if devices:
                return devices
        return find_on_fullest_node(job, gpus, cluster, sharing, nodes) if best else ()


class JobMix:
    """The distribution of the requests of the latest jobs, as a forecast for future jobs."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, object] = OrderedDict()  # by job id, the oldest first
        self._counts: Counter[object] = Counter()
        self._examples: dict[object, Job] = {}
        self._new = 0

    def learn(self, job: Job) -> None:
        if job.id in self._requests:
            return
        request = self._requests[job.id] = job.request
        self._counts[request] += 1
        self._examples[request] = job
        self._new += 1
        if len(self._requests) > JOBS_IN_MIX:
            _, oldest = self._requests.popitem(last=False)
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest], self._examples[oldest]

    @property
    def has_changed(self) -> bool:
        """Whether a third of the jobs are newer than the last call of `shares`."""
        return 3 * self._new >= len(self._requests)

    def shares(self) -> list[tuple[Job, float]]:
        """Return a job of each request, with the share of that request among all jobs."""
        self._new = 0
        return [
            (self._examples[request], count / len(self._requests)) for request, count in self._counts.items()
        ]


class NodeKind:
    """Nodes that are equal for every usual job: equal devices, eligible for the same requests."""

    def __init__(
        self, devices: tuple[Device, ...], exclusive: bool, usual: Iterable[tuple[Job, float]]
    ) -> None:
        self._devices, self._exclusive = devices, exclusive
        self._sizes = tuple(_size(device) for device in devices)
        self._uniform = len({(device.model, device.memory_mb) for device in devices}) == 1
        self._needs: dict[tuple[int, tuple[str, ...]], Free] = {}
        self._requests = [(job, share, self.needs(job)) for job, share in usual]
        self._cpus = sorted({job.cpus for job, _, _ in self._requests})
        self._ram_mb = sorted({job.ram_mb for job, _, _ in self._requests})
        self._served: dict[tuple[int, int], dict[tuple[int, Free], float]] = {}
        self._usable: dict[tuple[tuple[int, int], Free], float] = {}

    def needs(self, job: Job) -> Free:
        """Return how much the job needs of each device: more than a device has if it does not accept it."""
        found = self._needs.get((job.memory_mb, job.models))
        if found is None:
            anywhere = replace(job, nodes=())  # the caller has checked that the node is eligible
            part = 0 if self._exclusive else job.memory_mb
            found = self._needs[job.memory_mb, job.models] = tuple(
                (part or size) if anywhere.accepts(device) else size + 1
                for device, size in zip(self._devices, self._sizes, strict=True)
            )
        return found

    def normalize(self, free: Free) -> Free:
        """Return the same tuple for states that differ only by the order of equal devices."""
        return tuple(sorted(free)) if self._uniform else free

    def usable(self, cpus: float, ram_mb: float, free: Free) -> float:
        """Return the room that the usual jobs can use, in devices, weighted by the share of each request."""
        host = (bisect_right(self._cpus, cpus + 1e-9), bisect_right(self._ram_mb, ram_mb))
        known = self._usable.get((host, free))
        if known is None:
            known = 0.0
            for (gpus, needs), share in self._served_with(host).items():
                fitting = [f / s for f, s, n in zip(free, self._sizes, needs, strict=True) if f >= n]
                if len(fitting) >= gpus:
                    known += share * sum(fitting)
            if len(self._usable) >= MOST_CACHED:
                self._usable.clear()
            self._usable[host, free] = known
        return known

    def _served_with(self, host: tuple[int, int]) -> dict[tuple[int, Free], float]:
        """Return the share of each (number of devices, needs) among the requests that the free processors
        and host memory suffice for."""
        if host not in self._served:
            served = self._served[host] = {}
            cpus, ram_mb = self._cpus[: host[0]], self._ram_mb[: host[1]]
            for job, share, needs in self._requests:
                if job.cpus in cpus and job.ram_mb in ram_mb:
                    key = (1 if job.may_span_nodes else job.least, needs)
                    served[key] = served.get(key, 0.0) + share
        return self._served[host]


class StateGroup:
    """Nodes in the same state, and the loss that each request would cause there."""

    __slots__ = ("losses", "nodes")

    def __init__(self) -> None:
        self.nodes = 0
        self.losses: dict[int, float] = {}


class ClusterView:
    """The nodes of one cluster, grouped by state. It keeps no reference to the cluster itself."""

    def __init__(self, exclusive: bool) -> None:
        self._exclusive = exclusive
        self._mix = JobMix()
        self._nodes: dict[str, NodeState] = {}  # as declared at the last update
        self._equal: list[NodeSet] = []  # sets of nodes with equal devices
        self._version = 0
        self._requests: dict[object, int] = {}  # a number for each request, which is faster to look up
        self._kinds: dict[str, NodeKind] = {}  # by node
        self._states: dict[str, State] = {}  # by node
        self._groups: dict[State, StateGroup] = {}

    def update(self, cluster: Cluster, job: Job) -> None:
        """Learn the job's request and regroup the nodes that changed."""
        self._mix.learn(job)
        has_new_nodes = self._nodes is not cluster.nodes
        if has_new_nodes:
            self._nodes, self._equal = cluster.nodes, _group_by_devices(cluster)
        if has_new_nodes or self._mix.has_changed:
            self._find_kinds(cluster)
            self._requests, self._states, self._groups = {}, {}, {}
            changed: Iterable[NodeState] = cluster.nodes.values()
        else:
            changed = cluster.changed_since(self._version)
        for node in changed:
            self._regroup(node)
        self._version = cluster.version

    def find_nodes(self, job: Job, gpus: int, nodes: NodeSet) -> NodeSet:
        """Return the nodes of the set with the least loss; empty if the job fits on none."""
        request = self._requests.setdefault((job.request, gpus), len(self._requests))
        least, best = math.inf, 0
        for state, group in self._groups.items():
            here = group.nodes & nodes
            if here:
                loss = group.losses.get(request)
                if loss is None:
                    loss = group.losses[request] = _loss(job, gpus, state)
                if loss < least:
                    least, best = loss, here
                elif loss == least < math.inf:
                    best |= here
        return best

    def find_devices(self, job: Job, gpus: int, node: NodeState, threshold: float) -> tuple[Device, ...]:
        """Return the available devices of the node with the least loss."""
        kind, cpus, ram_mb, _ = self._states[node.name]
        free = tuple(_free(state, self._exclusive) for state in node.devices)
        needs = kind.needs(job)
        if not self._exclusive:
            needs = tuple(
                need if state.utilization < threshold else _size(state.device) + 1
                for need, state in zip(needs, node.devices, strict=True)
            )
        _, chosen = _choose_devices(job, gpus, (kind, cpus, ram_mb, free), needs)
        return tuple(node.devices[index].device for index in sorted(chosen))

    def _find_kinds(self, cluster: Cluster) -> None:
        """Put nodes with equal devices in one kind, unless only some of them are eligible for a request."""
        usual = self._mix.shares()
        self._kinds = {}
        kinds = self._equal
        for eligible in {cluster.eligible(job).nodes for job, _ in usual}:
            kinds = [part for nodes in kinds for part in (nodes & eligible, nodes & ~eligible) if part]
        for nodes in kinds:
            first = next(cluster.nodes_in(nodes))
            requests = [(job, share) for job, share in usual if cluster.eligible(job).nodes & first.bit]
            kind = NodeKind(first.node.devices, self._exclusive, requests)
            self._kinds.update((node.name, kind) for node in cluster.nodes_in(nodes))

    def _regroup(self, node: NodeState) -> None:
        """Move the node to the group of its present state."""
        kind = self._kinds[node.name]
        free = tuple(_free(state, self._exclusive) for state in node.devices)
        state = (
            kind,
            round(node.free_cpus, 6) if node.node.cpus else math.inf,
            node.free_ram_mb if node.node.ram_mb else math.inf,
            kind.normalize(free),
        )
        before = self._states.get(node.name)
        if state == before:
            return
        if before is not None:
            group = self._groups[before]
            group.nodes ^= node.bit
            if not group.nodes:
                del self._groups[before]
        self._states[node.name] = state
        self._groups.setdefault(state, StateGroup()).nodes |= node.bit


def _group_by_devices(cluster: Cluster) -> list[NodeSet]:
    """Return the sets of nodes with equal devices."""
    equal: dict[object, NodeSet] = {}
    for node in cluster.nodes.values():
        devices = tuple((device.model, device.memory_mb) for device in node.node.devices)
        equal[devices] = equal.get(devices, 0) | node.bit
    return list(equal.values())


def _size(device: Device) -> int:
    return device.memory_mb or 1  # a device of unknown memory cannot be shared


def _free(state: DeviceState, exclusive: bool) -> int:
    """Return how much of the device is free."""
    if not state.healthy:
        return 0
    if not state.holders:
        return _size(state.device)
    return 0 if exclusive or state.exclusive else state.free_mb


def _loss(job: Job, gpus: int, state: State) -> float:
    """Return the least loss on a node in this state, in steps; infinite if the job does not fit."""
    loss, _ = _choose_devices(job, gpus, state, state[0].needs(job))
    return loss if loss == math.inf else math.floor(loss / LOSS_STEP + 1e-6)


def _choose_devices(job: Job, gpus: int, state: State, needs: Free) -> tuple[float, tuple[int, ...]]:
    """Return the least loss and the indexes of the devices that cause it."""
    kind, cpus, ram_mb, free = state
    fitting = sorted((f, index) for index, (f, need) in enumerate(zip(free, needs, strict=True)) if f >= need)
    if len(fitting) < gpus or job.cpus > cpus + 1e-9 or job.ram_mb > ram_mb:
        return math.inf, ()
    choices: list[tuple[int, ...]] = [tuple(index for _, index in fitting[:gpus])]
    if gpus == 1:
        # One of each group of equal devices; the one with the least room last, because it wins ties.
        choices = [(index,) for index in {(f, needs[index]): index for f, index in fitting[::-1]}.values()]
    before = kind.usable(cpus, ram_mb, kind.normalize(free))
    least, best = math.inf, choices[0]
    for chosen in choices:
        left = list(free)
        for index in chosen:
            left[index] -= needs[index]
        after = kind.normalize(tuple(left))
        loss = before - kind.usable(cpus - job.cpus, ram_mb - job.ram_mb, after)
        if loss <= least + 1e-9:
            least, best = loss, chosen
    return least, best
