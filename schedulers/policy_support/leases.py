"""Leases: a job that starts keeps its devices for a while; afterwards earlier jobs may have them.

When the lease of a job is over it goes on running until a waiting job of an earlier rank can use its devices.
Which nodes have such devices is kept in bit sets, so that a job for which no room can be made costs little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Running, Tier
from gpu_flows.schedulers.placement.base import ALL_NODES
from gpu_flows.schedulers.placement.pack import count_idle
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.policy_support.making_room import (
    count_accepted,
    count_gained,
    is_preemptible_after,
    without_spare,
)
from gpu_flows.schedulers.policy_support.tiers import are_free, find_in_tier, tiers_up_to

FindInTier = Callable[[Job, Tier, Cluster, NodeSet], tuple[Device, ...]]  # idle devices for a job, or none


class Leases:
    """The leases of the running jobs, and the devices of those whose lease is over."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._ends: list[tuple[float, str]] = []  # a heap; entries of jobs that ended or moved are dropped
        self._current: dict[str, tuple[Running, float]] = {}  # job id -> its attempt and when its lease ends
        self._over: dict[str, Running] = {}
        self._fresh: list[Running] = []  # whose lease ended since the sets below were updated
        self._at_least: list[NodeSet] = [0]  # [n]: nodes with n or more devices of jobs whose lease is over
        self._counts: dict[str, int] = {}  # by node
        self._cluster: Cluster | None = None
        self._versions = (-1, -1)  # of the cluster when the sets were updated: of its service, of its state

    # -- leases -------------------------------------------------------------------------------

    def begin(self, running: Running, now: float) -> None:
        """Lease its devices to a job that has started, or that a plan stopped and left where it was."""
        known = self._current.get(running.job.id)
        if known is None or known[0] is not running:
            self._renew(running, now if self.is_over(running) else running.since)

    def is_over(self, running: Running) -> bool:
        return self._over.get(running.job.id) is running

    def end_due(self, state: State) -> list[Running]:
        """Return the jobs whose lease has ended since the last call. Those that are protected now are asked
        again after another lease."""
        ended = []
        while self.next_end(state) <= state.now:
            running = state.running[heappop(self._ends)[1]]
            self._current[running.job.id] = (running, math.inf)
            if state.may_preempt(running):
                self._over[running.job.id] = running
                self._fresh.append(running)
                ended.append(running)
            elif running.job.preemptible:
                self._renew(running, state.now)
        self._forget(state)
        return ended

    def next_end(self, state: State) -> float:
        """Return when the next lease ends."""
        while self._ends:
            end, job_id = self._ends[0]
            current = self._current.get(job_id)
            if current and current[1] == end and state.running.get(job_id) is current[0]:
                return end
            heappop(self._ends)
        return math.inf

    def let_move(self, running: Running, state: State) -> None:
        """Preempt a job whose lease is over, so that this plan can start it on nearer devices or else on its
        own again. A job that could not have its own again, because its node is drained, goes on."""
        mark = state.draft.checkpoint()
        state.draft.preempt(running.job.id)
        if not are_free(running.job, running.devices, state.cluster):
            state.draft.rollback(mark)

    def _renew(self, running: Running, now: float) -> None:
        end = now + self._length_s
        self._current[running.job.id] = (running, end)
        heappush(self._ends, (end, running.job.id))

    def _forget(self, state: State) -> None:
        if len(self._current) > 2 * len(state.running) + 1_000:
            for table in (self._current, self._over):
                for job_id in [each for each in table if each not in state.running]:
                    del table[job_id]

    # -- devices that may be taken from jobs whose lease is over -------------------------------

    def make_room(
        self, state: State, job: Job, widest: Tier, find: FindInTier = find_in_tier
    ) -> tuple[Device, ...]:
        """Preempt jobs of a later rank whose lease is over, and return their devices for the waiting job: in
        the narrowest tier in which that is possible, up to the widest. Return no device if it is not."""
        draft, checkpoint = state.draft, state.draft.checkpoint()
        for tier, places in self._places_by_tier(state, job, widest):
            while room := self._choose(state, job, tier, places):
                nodes, victims = room
                for running in victims:
                    draft.preempt(running.job.id)
                devices = find(job, tier, state.cluster, nodes)
                if devices:
                    return devices
                draft.rollback(checkpoint)
                places &= ~nodes
        return ()

    def can_make_room(self, state: State, job: Job, widest: Tier) -> bool:
        """Return whether there are jobs that `make_room` would preempt."""
        found = self._places_by_tier(state, job, widest)
        return any(self._choose(state, job, tier, places) for tier, places in found)

    def _places_by_tier(self, state: State, job: Job, widest: Tier) -> Iterator[tuple[Tier, NodeSet]]:
        """Yield each tier, with the nodes of the places that are large enough for the job."""
        if is_preemptible_after(state, job):
            self._update(state)
            for tier in tiers_up_to(widest):
                yield tier, self._places(job, tier, state.cluster)

    def _places(self, job: Job, tier: Tier, cluster: Cluster) -> NodeSet:
        """Return the nodes that would have the devices if all jobs whose lease is over made room: by
        themselves, together with their rack, or all together."""
        able, roomy = cluster.eligible(job).nodes, 0
        if tier == Tier.NODE:
            for count in range(1, min(job.gpus, len(self._at_least) - 1) + 1):
                roomy |= cluster.with_idle(job.gpus - count) & self._at_least[count]
        elif tier == Tier.RACK:
            for rack in cluster.racks.values():
                if self._would_have(rack.nodes & able, cluster) >= job.gpus:
                    roomy |= rack.nodes
        elif self._would_have(able, cluster) >= job.gpus:
            roomy = able
        return roomy & able

    def _would_have(self, nodes: NodeSet, cluster: Cluster) -> int:
        over = sum((nodes & level).bit_count() for level in self._at_least[1:])
        return over and over + count_idle(nodes, cluster)

    def _choose(
        self, state: State, job: Job, tier: Tier, places: NodeSet
    ) -> tuple[NodeSet, list[Running]] | None:
        """Return one of the places where jobs of a later rank can make room, and the jobs to preempt there,
        those of the latest rank first."""
        if not places:
            return None
        cluster, rank = state.cluster, state.queue.rank_of(job.id)
        met: dict[NodeSet, list[tuple[int, Running]]] = {}
        missing: dict[NodeSet, int] = {}
        for later, running in state.preemptible():
            if later <= rank:
                break
            gains: dict[NodeSet, int] = {}
            for name, count in count_gained(job, running, state).items():
                node = cluster.nodes[name]
                if node.bit & places:
                    place = (node.bit, node.rack.nodes, ALL_NODES)[tier] & places
                    gains[place] = gains.get(place, 0) + count
            for place, count in gains.items():
                if place not in met:
                    idle = sum(count_accepted(node, job, state) for node in cluster.nodes_in(place))
                    met[place], missing[place] = [], job.gpus - idle
                met[place].append((count, running))
                missing[place] -= count
                if missing[place] <= 0:
                    return place, without_spare(met[place], -missing[place])
        return None

    def _update(self, state: State) -> None:
        """Update the sets of nodes after what has changed since the last time."""
        cluster = state.cluster
        service, version = self._versions
        if cluster is not self._cluster or cluster.service_version != service:
            self._at_least, self._counts = [0, 0], {}
            nodes = {node.name for node in cluster}
        else:
            nodes = {node.name for node in cluster.changed_since(version)}
            nodes |= {name for running in self._fresh for name in running.by_node}
        self._fresh.clear()
        self._cluster, self._versions = cluster, (cluster.service_version, cluster.version)
        for name in nodes & cluster.nodes.keys():
            node = cluster.nodes[name]
            holders = [next(iter(each.holders)) for each in node.devices if len(each.holders) == 1]
            count = (
                sum(
                    1
                    for job_id in holders
                    if job_id in self._over and self._over[job_id] is state.running.get(job_id)
                )
                if node.up
                else 0
            )
            self._set_count(name, node.bit, count)

    def _set_count(self, name: str, bit: NodeSet, count: int) -> None:
        before = self._counts.get(name, 0)
        self._counts[name] = count
        while len(self._at_least) <= count:
            self._at_least.append(0)
        for level in range(min(before, count) + 1, max(before, count) + 1):
            self._at_least[level] ^= bit
