"""Which running jobs cross which uplinks, how much that slows each of them down, and what they lose to it.

A job on several nodes crosses the uplink of each of its nodes; if these are in several racks, also the uplink
of each of its racks. A job that starts or stops changes how many jobs send over its uplinks at the same time,
and by that the slowdown of the jobs for which one of these is the busiest uplink, and of no others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Running
from gpu_flows.schedulers.network.base import NetworkModel
from gpu_flows.schedulers.network.contention import count_senders
from gpu_flows.schedulers.network.shape import Shape
from gpu_flows.schedulers.network.traffic import Traffic


@dataclass(slots=True, eq=False)
class Uplink:
    """The link from a node to its rack, or from a rack to the other racks."""

    crossings: dict[str, Crossing] = field(default_factory=dict)  # of its jobs, by job id
    load: float = 0.0  # the sums of `contention` over its jobs
    computing: float = 0.0
    senders: float = 1.0  # the jobs that send at the same time

    def add(self, crossing: Crossing, load: float, computing: float) -> None:
        self.crossings[crossing.running.job.id] = crossing
        self._set(self.load + load, self.computing + computing)

    def remove(self, crossing: Crossing, load: float, computing: float) -> None:
        del self.crossings[crossing.running.job.id]
        if self.crossings:
            self._set(self.load - load, self.computing - computing)
        else:  # sums of floats are not exact
            self._set(0.0, 0.0)

    def _set(self, load: float, computing: float) -> None:
        self.load, self.computing = load, computing
        self.senders = count_senders(len(self.crossings), load, computing)


@dataclass(slots=True, eq=False)
class Crossing:
    """A running job that spans nodes."""

    running: Running
    traffic: Traffic | None  # None: other jobs do not affect its slowdown
    slowdown: float
    since: float  # when the slowdown begins
    lost_s: float = 0.0  # time lost to the network before that
    uplinks: tuple[list[Uplink], ...] = ()  # of its nodes; of its racks, if it spans several
    senders: tuple[float, ...] = (1.0, 1.0)  # over the busiest of each

    def lost_until(self, now: float) -> float:
        """Return the time that the job has lost to the network in this attempt."""
        return self.lost_s + max(0.0, now - self.since) * (1 - 1 / self.slowdown)

    def update(self, now: float) -> bool:
        """Update the slowdown, and return whether it has changed."""
        assert self.traffic is not None
        self.senders = tuple(max([link.senders for link in links], default=1.0) for links in self.uplinks)
        slowdown = self.traffic.slowdown(*self.senders)
        if slowdown == self.slowdown:
            return False
        self.lost_s, self.since, self.slowdown = self.lost_until(now), max(self.since, now), slowdown
        return True


class Links:
    """The uplinks of a cluster and the jobs that cross them."""

    def __init__(self, cluster: Cluster, network: NetworkModel) -> None:
        self._cluster, self._network = cluster, network
        self._nodes: dict[str, Uplink] = {}  # by name of the node
        self._racks: dict[str, Uplink] = {}  # by name of the rack
        self._crossings: dict[str, Crossing] = {}  # by job id

    def slowdown(self, running: Running) -> float:
        """Return how many times as long the job takes now as on one node."""
        crossing = self._crossings.get(running.job.id)
        return crossing.slowdown if crossing else 1.0

    def lost_s(self, running: Running, now: float) -> float:
        """Return the time that the job has lost to the network in this attempt."""
        crossing = self._crossings.get(running.job.id)
        return crossing.lost_until(now) if crossing and crossing.running is running else 0.0

    def add(self, running: Running, now: float, pause_s: float) -> list[Crossing]:
        """Add a job that starts and works after a pause. Return the other crossings of which this changes
        the slowdown."""
        if len(running.by_node) < 2:
            return []
        job, shape = running.job, self._cluster.shape(running.devices)
        traffic = self._network.traffic(job, shape)
        crossing = Crossing(running, traffic, self._network.slowdown(job, shape), now + pause_s)
        self._crossings[job.id] = crossing
        if traffic is None:
            return []
        crossing.uplinks = self._find_uplinks(running, shape)
        others = _change_uplinks(crossing, traffic, starts=True)
        crossing.update(now)
        return [other for other in others if other.update(now)]

    def remove(self, running: Running, now: float) -> list[Crossing]:
        """Remove a job that stops. Return the other crossings of which this changes the slowdown."""
        crossing = self._crossings.get(running.job.id)
        if crossing is None or crossing.running is not running:
            return []
        del self._crossings[running.job.id]
        if crossing.traffic is None:
            return []
        others = _change_uplinks(crossing, crossing.traffic, starts=False)
        return [other for other in others if other.update(now)]

    def _find_uplinks(self, running: Running, shape: Shape) -> tuple[list[Uplink], list[Uplink]]:
        uplinks = [self._nodes.setdefault(name, Uplink()) for name in running.by_node]
        if len(shape) < 2:
            return uplinks, []
        racks = dict.fromkeys(self._cluster.nodes[name].rack.name for name in running.by_node)
        return uplinks, [self._racks.setdefault(name, Uplink()) for name in racks]


def _change_uplinks(crossing: Crossing, traffic: Traffic, starts: bool) -> list[Crossing]:
    """Add the job to its uplinks or remove it. Return the other jobs for which one of them was the busiest,
    or is it now."""
    others: dict[str, Crossing] = {}
    for tier, uplinks in enumerate(crossing.uplinks):
        for uplink in uplinks:
            before = uplink.senders
            change = uplink.add if starts else uplink.remove
            change(crossing, traffic.loads[tier], traffic.computing)
            for job_id, other in uplink.crossings.items():
                if other.senders[tier] == before or other.senders[tier] < uplink.senders:
                    others[job_id] = other
    others.pop(crossing.running.job.id, None)
    return list(others.values())
