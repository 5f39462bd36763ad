"""Fragmentation gradient descent: every job goes where it spoils least for the jobs to come.

Free room is a fragment to a job that cannot use it: too small a part of a device, too few devices
on the node, too little processor or memory beside them. With p the share of each ask among the
jobs to come, a node's fragmentation is

    F = sum over asks of p * (its free room - the room of it that the ask can use)

and a job goes where F grows least. It takes the same from the free room wherever it goes, so that
is where the room that can be used, weighted by p, shrinks least: the loss. (Q. Weng et al., "Beware
of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC 2023.)

The paper knows the distribution of the asks beforehand; here it is learned from the jobs that
places were sought for. That memory is all that this placement keeps, apart for each cluster, and
it goes with the cluster. The rest is bookkeeping for speed: nodes in the same state are judged
together, and judged anew only when they change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

from gpu_flows.schedulers.cluster.state import Cluster, DeviceState, NodeState
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions
from gpu_flows.schedulers.placement.pack import Pack, on_fullest_node

REMEMBERED = 10_000  # jobs that the mix is learned from: the last ones
STEP = 0.1  # devices: losses that differ by less are alike, and the first node in order wins
MOST_KNOWN = 100_000  # states whose usable room is kept in mind, a kind of nodes

Free = tuple[int, ...]  # MiB on each device of a node; all of it only on an idle one
State = tuple["Kind", float, float, Free]  # with the processors and memory left beside the devices


class Fragmentation(Pack):
    """Where the usual jobs lose the least room that they could use (FGD).

    `best_fit` looks at the devices alone and leaves the tightest gap, whoever may use it; this one
    knows which gaps are of use to whom. Devices too busy to be offered are passed over. A job that
    has to span nodes is placed as `pack` does it: the rule says nothing about such jobs.
    """

    name = "fragmentation"

    def __init__(self) -> None:
        self._views: dict[str, WeakKeyDictionary[Cluster, View]] = {
            "exclusive": WeakKeyDictionary(),
            "shared": WeakKeyDictionary(),
        }

    def within(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
    ) -> tuple[Device, ...]:
        views = self._views[sharing.sharing]
        view = views.get(cluster)
        if view is None:
            view = views[cluster] = View(sharing.sharing == "exclusive")
        view.look_at(cluster, job)
        best = view.least_loss(job, gpus, nodes)
        for node in cluster.those(best):
            devices = view.devices(job, gpus, node, sharing.utilization_threshold)
            if devices:
                return devices
        return on_fullest_node(job, gpus, cluster, sharing, nodes) if best else ()


class Mix:
    """What jobs to come will ask for: the same as the last ones."""

    def __init__(self) -> None:
        self._asks: OrderedDict[str, object] = OrderedDict()  # by job, the oldest first
        self._counts: Counter[object] = Counter()
        self._examples: dict[object, Job] = {}
        self._new = 0

    def learn(self, job: Job) -> None:
        if job.id in self._asks:
            return
        ask = self._asks[job.id] = job.request
        self._counts[ask] += 1
        self._examples[ask] = job
        self._new += 1
        if len(self._asks) > REMEMBERED:
            _, oldest = self._asks.popitem(last=False)
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest], self._examples[oldest]

    @property
    def differs(self) -> bool:
        """Whether a third of it is new since it was last taken."""
        return 3 * self._new >= len(self._asks)

    def take(self) -> list[tuple[Job, float]]:
        """A job of each ask, and how large a part of all asks for the same."""
        self._new = 0
        return [(self._examples[ask], count / len(self._asks)) for ask, count in self._counts.items()]


class Kind:
    """Nodes that are the same to every usual job: equal devices, fit for the same asks."""

    def __init__(
        self, devices: tuple[Device, ...], exclusive: bool, usual: Iterable[tuple[Job, float]]
    ) -> None:
        self._devices, self._exclusive = devices, exclusive
        self._sizes = tuple(_size(device) for device in devices)
        self._uniform = len({(device.model, device.memory_mb) for device in devices}) == 1
        self._needs: dict[tuple[int, tuple[str, ...]], Free] = {}
        self._asks = [(job, part, self.needs(job)) for job, part in usual]
        self._cpus = sorted({job.cpus for job, _, _ in self._asks})
        self._ram_mb = sorted({job.ram_mb for job, _, _ in self._asks})
        self._served: dict[tuple[int, int], dict[tuple[int, Free], float]] = {}
        self._usable: dict[tuple[tuple[int, int], Free], float] = {}

    def needs(self, job: Job) -> Free:
        """What the job needs of each device; more than there is of one that it does not accept."""
        found = self._needs.get((job.memory_mb, job.models))
        if found is None:
            anywhere = replace(job, nodes=())  # whether the node may be used is settled elsewhere
            part = 0 if self._exclusive else job.memory_mb
            found = self._needs[job.memory_mb, job.models] = tuple(
                (part or size) if anywhere.accepts(device) else size + 1
                for device, size in zip(self._devices, self._sizes, strict=True)
            )
        return found

    def in_order(self, free: Free) -> Free:
        """The same whichever of equal devices is which."""
        return tuple(sorted(free)) if self._uniform else free

    def usable(self, cpus: float, ram_mb: float, free: Free) -> float:
        """The room that usual jobs can use, in devices, weighted by how usual they are."""
        host = (bisect_right(self._cpus, cpus + 1e-9), bisect_right(self._ram_mb, ram_mb))
        known = self._usable.get((host, free))
        if known is None:
            known = 0.0
            for (gpus, needs), part in self._served_with(host).items():
                fitting = [f / s for f, s, n in zip(free, self._sizes, needs, strict=True) if f >= n]
                if len(fitting) >= gpus:
                    known += part * sum(fitting)
            if len(self._usable) >= MOST_KNOWN:
                self._usable.clear()
            self._usable[host, free] = known
        return known

    def _served_with(self, host: tuple[int, int]) -> dict[tuple[int, Free], float]:
        """How usual it is to need so much of so many devices, among asks that the rest of the node
        suffices for."""
        if host not in self._served:
            served = self._served[host] = {}
            cpus, ram_mb = self._cpus[: host[0]], self._ram_mb[: host[1]]
            for job, part, needs in self._asks:
                if job.cpus in cpus and job.ram_mb in ram_mb:
                    key = (1 if job.may_span_nodes else job.least, needs)
                    served[key] = served.get(key, 0.0) + part
        return self._served[host]


class Group:
    """Nodes in the same state, and what each ask would cost there."""

    __slots__ = ("losses", "nodes")

    def __init__(self) -> None:
        self.nodes = 0
        self.losses: dict[int, float] = {}


class View:
    """One cluster as the usual jobs see it, kept up to date. It does not hold on to the cluster."""

    def __init__(self, exclusive: bool) -> None:
        self._exclusive = exclusive
        self._mix = Mix()
        self._nodes: dict[str, NodeState] = {}  # as declared when last looked at
        self._equal: list[int] = []  # sets of nodes with equal devices
        self._moment = 0
        self._asks: dict[object, int] = {}  # numbers for them: quicker to look up
        self._kinds: dict[str, Kind] = {}  # by node
        self._states: dict[str, State] = {}  # by node
        self._groups: dict[State, Group] = {}

    def look_at(self, cluster: Cluster, job: Job) -> None:
        """Learn of the job, and of what changed in the cluster."""
        self._mix.learn(job)
        declared = self._nodes is not cluster.nodes
        if declared:
            self._nodes, self._equal = cluster.nodes, _with_equal_devices(cluster)
        if declared or self._mix.differs:
            self._sort_by_kind(cluster)
            self._asks, self._states, self._groups = {}, {}, {}
            changed: Iterable[NodeState] = cluster.nodes.values()
        else:
            changed = cluster.changed_since(self._moment)
        for node in changed:
            self._regroup(node)
        self._moment = cluster.moment

    def least_loss(self, job: Job, gpus: int, nodes: int) -> int:
        """Those nodes of the set on which the job would cost the least; none if it fits on none."""
        ask = self._asks.setdefault((job.request, gpus), len(self._asks))
        least, best = math.inf, 0
        for state, group in self._groups.items():
            here = group.nodes & nodes
            if here:
                loss = group.losses.get(ask)
                if loss is None:
                    loss = group.losses[ask] = _loss(job, gpus, state)
                if loss < least:
                    least, best = loss, here
                elif loss == least < math.inf:
                    best |= here
        return best

    def devices(self, job: Job, gpus: int, node: NodeState, threshold: float) -> tuple[Device, ...]:
        """The devices of the node with which the job costs the least, of those that are on offer."""
        kind, cpus, ram_mb, _ = self._states[node.name]
        free = tuple(_free(state, self._exclusive) for state in node.devices)
        needs = kind.needs(job)
        if not self._exclusive:
            needs = tuple(
                need if state.utilization < threshold else _size(state.device) + 1
                for need, state in zip(needs, node.devices, strict=True)
            )
        _, chosen = _cheapest(job, gpus, (kind, cpus, ram_mb, free), needs)
        return tuple(node.devices[index].device for index in sorted(chosen))

    def _sort_by_kind(self, cluster: Cluster) -> None:
        """Nodes with equal devices are of one kind, unless an ask is served by some of them only."""
        usual = self._mix.take()
        self._kinds = {}
        kinds = self._equal
        for able in {cluster.able(job).nodes for job, _ in usual}:
            kinds = [part for nodes in kinds for part in (nodes & able, nodes & ~able) if part]
        for nodes in kinds:
            first = next(cluster.those(nodes))
            fit = [(job, part) for job, part in usual if cluster.able(job).nodes & first.bit]
            kind = Kind(first.node.devices, self._exclusive, fit)
            self._kinds.update((node.name, kind) for node in cluster.those(nodes))

    def _regroup(self, node: NodeState) -> None:
        """Put the node with those in the same state."""
        kind = self._kinds[node.name]
        free = tuple(_free(state, self._exclusive) for state in node.devices)
        state = (
            kind,
            round(node.free_cpus, 6) if node.node.cpus else math.inf,
            node.free_ram_mb if node.node.ram_mb else math.inf,
            kind.in_order(free),
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
        self._groups.setdefault(state, Group()).nodes |= node.bit


def _with_equal_devices(cluster: Cluster) -> list[int]:
    equal: dict[object, int] = {}
    for node in cluster.nodes.values():
        devices = tuple((device.model, device.memory_mb) for device in node.node.devices)
        equal[devices] = equal.get(devices, 0) | node.bit
    return list(equal.values())


def _size(device: Device) -> int:
    return device.memory_mb or 1  # of one whose memory nobody knows: all or nothing


def _free(state: DeviceState, exclusive: bool) -> int:
    """How much of a device there is to have."""
    if not state.healthy:
        return 0
    if not state.holders:
        return _size(state.device)
    return 0 if exclusive or state.whole else state.free_mb


def _loss(job: Job, gpus: int, state: State) -> float:
    """What the job costs on a node in this state at the least, in steps; endless if it does not fit."""
    loss, _ = _cheapest(job, gpus, state, state[0].needs(job))
    return loss if loss == math.inf else math.floor(loss / STEP + 1e-6)


def _cheapest(job: Job, gpus: int, state: State, needs: Free) -> tuple[float, tuple[int, ...]]:
    """The devices of the node, by their index, with which the usual jobs lose the least; and how much."""
    kind, cpus, ram_mb, free = state
    fitting = sorted((f, index) for index, (f, need) in enumerate(zip(free, needs, strict=True)) if f >= need)
    if len(fitting) < gpus or job.cpus > cpus + 1e-9 or job.ram_mb > ram_mb:
        return math.inf, ()
    choices: list[tuple[int, ...]] = [tuple(index for _, index in fitting[:gpus])]
    if gpus == 1:  # any of those that are alike; the tightest last, to win if nothing else tells them apart
        choices = [(index,) for index in {(f, needs[index]): index for f, index in fitting[::-1]}.values()]
    before = kind.usable(cpus, ram_mb, kind.in_order(free))
    least, best = math.inf, choices[0]
    for chosen in choices:
        left = list(free)
        for index in chosen:
            left[index] -= needs[index]
        after = kind.in_order(tuple(left))
        loss = before - kind.usable(cpus - job.cpus, ram_mb - job.ram_mb, after)
        if loss <= least + 1e-9:
            least, best = loss, chosen
    return least, best
