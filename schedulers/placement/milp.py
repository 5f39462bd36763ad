"""Placement by an optimizer, as in RLTune: the nodes of a job are the solution of a small integer program.

With the job placed, the sum over all nodes of

    1.0 x (the node is partial: some of its devices are idle, some are not)
    0.5 x (the job has devices on it)
    -0.5 x (the next job fits on it)

plus 0.3 x (largest - smallest idle share of a node) is as small as possible. The weights are those of RLTune
(learned priorities, and such a program for the placement), except for the second: RLTune tries patterns with
at most one node more than necessary, and we also charge for each node. It measures the imbalance in devices,
we in shares of a node, because nodes differ in size.

A placement does not see the queue. The next job is unknown, so its term is an expectation over the jobs that
were placed lately, as in `fragmentation`.

Nodes in the same state are interchangeable: the program has a variable for each kind of node and each number
of devices taken from it, so its size does not depend on the number of nodes. A job on one node needs no
solver, because each kind of node can be tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gpu_flows.schedulers.cluster.node_state import NodeSet, NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions, available_devices
from gpu_flows.schedulers.placement.fragmentation import JobMix
from gpu_flows.schedulers.placement.pack import Pack, may_share

PARTIAL, SPANNED, NEXT_FITS, IMBALANCE = 1.0, 0.5, 0.5, 0.3
MORE_NODES = 1  # than necessary, at most
USUAL_REQUESTS = 8  # the most frequent ones stand for the next job
# The first limit does not depend on the speed of the machine, so that the same jobs are placed alike.
SOLVER_LIMITS = {"node_limit": 1_000, "time_limit": 1.0, "mip_rel_gap": 0.0}


class Milp(Pack):
    """Few partial nodes, even shares of idle devices and room for the next job, by an integer program.

    A job that fits on one node gets one, as under `pack`. For a job that spans nodes, HiGHS chooses them; if
    it proves no optimum within its limits, the job is placed as by `pack`. So is a job that may share
    devices, because the program counts whole ones. Racks make no difference.
    """

    name = "milp"

    def __init__(self) -> None:
        self._forecasts: WeakKeyDictionary[Cluster, Forecast] = WeakKeyDictionary()

    def find_within_node(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        if may_share(job, sharing):
            return super().find_within_node(job, gpus, cluster, sharing, nodes)
        forecast = self._forecasts.setdefault(cluster, Forecast())
        forecast.learn(job, cluster)
        groups = _group_nodes(job, cluster, sharing, nodes, forecast)
        kinds = count_kinds(groups)
        choices = [((number, gpus, 1),) for number, (kind, _) in enumerate(kinds) if kind.most >= gpus]
        best = min(choices, key=lambda choice: round(cost(kinds, choice), 9), default=())
        return _take(best, groups, job, cluster, sharing)

    def find_across_nodes(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        if not may_share(job, sharing):
            groups = _group_nodes(job, cluster, sharing, nodes, self._forecasts[cluster])
            if best := solve(count_kinds(groups), gpus):
                return _take(best, groups, job, cluster, sharing)
        return super().find_across_nodes(job, gpus, cluster, sharing, nodes)


# -- nodes ------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """The state of a node, as far as it matters to the program."""

    size: int
    """Devices of the node."""
    idle: int
    most: int = 0
    """Devices that the job can have."""
    fits: tuple[float, ...] = (0.0,)
    """The probability that the next job fits on the node after 0, 1, 2 ... devices are taken from it."""

    def cost(self, taken: int) -> float:
        """Return what it costs to take devices from a node, without the imbalance."""
        before, after = (0 < idle < self.size for idle in (self.idle, self.idle - taken))
        return PARTIAL * (after - before) + SPANNED + NEXT_FITS * (self.fits[0] - self.fits[taken])

    def idle_share(self, taken: int = 0) -> float:
        return (self.idle - taken) / self.size


Kinds = tuple[tuple[Kind, int], ...]
"""The kinds of nodes, and how many nodes there are of each."""
Choice = tuple[tuple[int, int, int], ...]
"""(number of the kind, devices taken from a node, from how many nodes)."""


def _group_nodes(
    job: Job, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet, forecast: Forecast
) -> dict[Kind, NodeSet]:
    """Group the nodes that are up by their kind, the fullest first. Only those of the set serve the job."""
    accepts_all = cluster.eligible(job).accepts_all
    whole = accepts_all if sharing.sharing == "exclusive" and not (job.cpus or job.ram_mb) else 0
    groups: dict[Kind, NodeSet] = {}
    for node in cluster:
        if not node.devices:
            continue
        idle, size, bit = node.idle, len(node.devices), node.bit
        if not nodes & bit:
            kind = Kind(size, idle)
        elif whole & forecast.uniform & bit:
            kind = Kind(size, idle, idle, forecast.fits(node))
        else:
            devices = available_devices(node, job, size, sharing, bool(accepts_all & bit))
            kind = Kind(size, idle, len(devices), forecast.fits_without(devices, node, job))
        groups[kind] = groups.get(kind, 0) | bit
    return dict(sorted(groups.items(), key=lambda group: group[0].idle))


def count_kinds(groups: dict[Kind, NodeSet]) -> Kinds:
    return tuple((kind, nodes.bit_count()) for kind, nodes in groups.items())


def _take(
    choice: Choice, groups: dict[Kind, NodeSet], job: Job, cluster: Cluster, sharing: SharingOptions
) -> tuple[Device, ...]:
    """Return the chosen devices, from the first nodes of each kind in declared order."""
    members = [cluster.nodes_in(nodes) for nodes in groups.values()]
    found: list[Device] = []
    for number, taken, nodes in choice:
        for _ in range(nodes):
            found += available_devices(next(members[number]), job, taken, sharing)
    return tuple(found)


class Forecast:
    """The next job, as a distribution over the most frequent requests of the latest jobs."""

    def __init__(self) -> None:
        self.uniform: NodeSet = 0
        """Nodes on which every usual job accepts all devices or none, and finds processors and memory."""
        self._mix = JobMix()
        self._usual: list[tuple[Job, float, NodeSet]] = []  # a job, its share, the nodes that it accepts
        self._declared: dict[str, NodeState] = {}  # the nodes for which this was computed
        self._fits: dict[tuple[int, tuple[bool, ...]], tuple[float, ...]] = {}

    def learn(self, job: Job, cluster: Cluster) -> None:
        self._mix.learn(job)
        if not self._mix.has_changed and self._declared is cluster.nodes:
            return
        frequent = sorted(self._mix.shares(), key=lambda each: -each[1])[:USUAL_REQUESTS]
        self._usual = [(usual, share, cluster.eligible(usual).accepts_all) for usual, share in frequent]
        self._declared, self._fits = cluster.nodes, {}
        self.uniform = sum(node.bit for node in cluster.nodes.values())
        for usual, _, accepts_all in self._usual:
            if usual.cpus or usual.ram_mb:
                self.uniform = 0
            self.uniform &= accepts_all | ~cluster.eligible(usual).nodes

    def fits(self, node: NodeState) -> tuple[float, ...]:
        """Return `Kind.fits` of a uniform node."""
        accepted = tuple(bool(accepts_all & node.bit) for _, _, accepts_all in self._usual)
        known = self._fits.get((node.idle, accepted))
        if known is None:
            served = [
                (usual, share) for (usual, share, _), yes in zip(self._usual, accepted, strict=True) if yes
            ]
            known = self._fits[node.idle, accepted] = tuple(
                sum(share for usual, share in served if usual.gpus <= node.idle - taken)
                for taken in range(node.idle + 1)
            )
        return known

    def fits_without(self, devices: Sequence[Device], node: NodeState, job: Job) -> tuple[float, ...]:
        """Return `Kind.fits` of any node, from which the job takes these devices in this order."""
        position = {device.id: number for number, device in enumerate(devices)}
        idle = [state.device for state in node.devices if state.healthy and not state.holders]
        fits = [0.0] * (len(devices) + 1)
        for usual, share, _ in self._usual:
            accepted = [position.get(device.id, len(devices)) for device in idle if usual.accepts(device)]
            for taken in range(len(fits)):
                has_host_room = node.has_host_room(_both(usual, job) if taken else usual)
                if has_host_room and sum(place >= taken for place in accepted) >= usual.gpus:
                    fits[taken] += share
        return tuple(fits)


def _both(one: Job, other: Job) -> Job:
    """Return a job that needs the processors and host memory of both."""
    return Job("both", cpus=one.cpus + other.cpus, ram_mb=one.ram_mb + other.ram_mb)


# -- the program ------------------------------------------------------------------------------


def cost(kinds: Kinds, choice: Choice) -> float:
    """Return the value of the program for a choice."""
    total, shares, left = 0.0, [], [count for _, count in kinds]
    for number, taken, nodes in choice:
        kind, _ = kinds[number]
        total += nodes * kind.cost(taken)
        shares.append(kind.idle_share(taken))
        left[number] -= nodes
    shares += [kind.idle_share() for (kind, _), untouched in zip(kinds, left, strict=True) if untouched]
    return total + IMBALANCE * (max(shares) - min(shares))


def fewest_nodes(kinds: Kinds, gpus: int) -> int:
    """Return the smallest number of nodes with that many devices for the job; 0 if all have fewer."""
    nodes = 0
    for kind, count in sorted(kinds, key=lambda each: -each[0].most):
        if kind.most and kind.most * count >= gpus:
            return nodes - (-gpus // kind.most)
        gpus -= kind.most * count
        nodes += count
    return 0


@lru_cache(maxsize=4_096)
def solve(kinds: Kinds, gpus: int) -> Choice:
    """Return the choice of `gpus` devices with the least cost; empty if no optimum was proven in time."""
    fewest = fewest_nodes(kinds, gpus)
    if not fewest:
        return ()
    from scipy.optimize import Bounds, LinearConstraint, milp

    patterns = [
        (number, taken)
        for number, (kind, _) in enumerate(kinds)
        for taken in range(1, min(kind.most, gpus) + 1)
    ]
    program = Program(kinds, patterns, gpus, fewest + MORE_NODES)
    found = milp(
        program.objective,
        constraints=LinearConstraint(*program.constraints()),
        bounds=Bounds(0, program.upper),
        integrality=program.integral,
        options=SOLVER_LIMITS,
    )
    if found.status != 0:  # not proven optimal
        return ()
    nodes = [round(count) for count in found.x[: len(patterns)]]
    return tuple((*pattern, count) for pattern, count in zip(patterns, nodes, strict=True) if count)


class Program:
    """The integer program for patterns: (number of the kind, devices taken from such a node).

    Columns: for each pattern the number of its nodes, and whether there is one; for each kind whether a node
    stays untouched; the largest and the smallest idle share of a node.
    """

    def __init__(self, kinds: Kinds, patterns: Sequence[tuple[int, int]], gpus: int, most_nodes: int) -> None:
        count = len(patterns)
        self._counted, self._flagged = range(count), range(count, 2 * count)
        self._untouched = range(2 * count, 2 * count + len(kinds))
        self._largest, self._smallest = self._untouched.stop, self._untouched.stop + 1
        self._rows: list[tuple[dict[int, float], float, float]] = []  # coefficients, least, most
        columns = self._smallest + 1
        self.objective, self.upper, self.integral = [0.0] * columns, [1.0] * columns, [1] * columns
        self.objective[:count] = [kinds[number][0].cost(taken) for number, taken in patterns]
        self.objective[self._largest], self.objective[self._smallest] = IMBALANCE, -IMBALANCE
        self.upper[:count] = [min(kinds[number][1], gpus // taken) for number, taken in patterns]
        self.integral[self._largest] = self.integral[self._smallest] = 0
        self._limit_choice(kinds, patterns, gpus, most_nodes)
        self._measure_shares(kinds, patterns)

    def _limit_choice(
        self, kinds: Kinds, patterns: Sequence[tuple[int, int]], gpus: int, most_nodes: int
    ) -> None:
        """As many devices as the job needs, on so many nodes, of which each is in one pattern at most."""
        self._add({column: patterns[column][1] for column in self._counted}, gpus, gpus)
        self._add(dict.fromkeys(self._counted, 1.0), 0, most_nodes)
        for number, (_, nodes) in enumerate(kinds):
            chosen = {column: 1.0 for column in self._counted if patterns[column][0] == number}
            self._add(chosen, 0, nodes)
            self._add({**chosen, self._untouched[number]: nodes}, nodes, math.inf)
        for column, flag in zip(self._counted, self._flagged, strict=True):
            self._add({column: -1.0, flag: self.upper[column]}, 0, math.inf)

    def _measure_shares(self, kinds: Kinds, patterns: Sequence[tuple[int, int]]) -> None:
        """The largest idle share is that of each node at least, the smallest at most."""
        shares = {self._untouched[number]: kind.idle_share() for number, (kind, _) in enumerate(kinds)}
        for flag, (number, taken) in zip(self._flagged, patterns, strict=True):
            shares[flag] = kinds[number][0].idle_share(taken)
        for column, share in shares.items():  # a column that is 1 if there is a node with this share
            self._add({self._largest: 1.0, column: -share}, 0, math.inf)
            self._add({self._smallest: 1.0, column: 1.0}, -math.inf, 1 + share)

    def _add(self, row: dict[int, float], least: float, most: float) -> None:
        self._rows.append((row, least, most))

    def constraints(self) -> tuple[list[list[float]], list[float], list[float]]:
        """Return the matrix, and the least and the most value of each row."""
        columns = range(len(self.objective))
        matrix = [[row.get(column, 0.0) for column in columns] for row, _, _ in self._rows]
        return matrix, [least for _, least, _ in self._rows], [most for _, _, most in self._rows]
