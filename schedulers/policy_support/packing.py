"""Where a job fits beside others on shared devices, and how fast it would run there.

A job joins a device if the memory bounds of all its jobs fit, less a reserve, and none of them is slowed down
beyond a limit. Of all devices the job gets those on which it ends first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpu_flows.schedulers.cluster.node_state import DeviceState, NodeSet, NodeState
from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.base import ALL_NODES
from gpu_flows.schedulers.placement.linked import choose_linked
from gpu_flows.schedulers.policy import Slowdown, State
from gpu_flows.schedulers.policy_support.durations import remaining_duration
from gpu_flows.schedulers.policy_support.node_index import NodeIndex

MOST_NODES = 256  # looked at for one job or reservation; the rest of a large cluster is left out
MOST_OFFERS = 8  # compared for one job: more nodes rarely have a better one, and the search takes longer
SHORTEST_S = 0.001  # how late a job is at least, once it is late


class Limits(NamedTuple):
    """How tightly jobs may be packed."""

    most_slowdown: float
    reserve_mb: int


class Offer(NamedTuple):
    """Devices of which each serves the job at least at this rate. Better offers are greater."""

    rate: float
    fullness: int  # MiB that are free on them, negative
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices that will be given to a job once they have room for it."""

    job: Job
    devices: frozenset[str]
    nodes: frozenset[str]
    start: float  # when they are expected to have room; infinity if that is unknown

    def concerns(self, job: Job, device: Device) -> bool:
        """Return whether another job on this device could delay the reserved one."""
        wants_host = (self.job.cpus or self.job.ram_mb) and (job.cpus or job.ram_mb)
        return device.id in self.devices or bool(wants_host and device.node in self.nodes)


class Refusal(NamedTuple):
    """A job that got no device, and what that was based on. While this is the same, later plans look only at
    nodes that have changed since."""

    job: Job
    reserved: Reservation | None
    nodes: Mapping[str, NodeState]
    slowdown: Slowdown
    version: int  # of the cluster
    why: str

    def holds(self, job: Job, reserved: Reservation | None, state: State) -> bool:
        same_model = self.slowdown is state.slowdown
        same_nodes = self.nodes is state.cluster.nodes
        return self.job is job and self.reserved is reserved and same_model and same_nodes


class Packing:
    """The search for devices in one plan."""

    def __init__(self, state: State, limits: Limits, index: NodeIndex) -> None:
        self._state, self._limits, self._index = state, limits, index
        self._cluster = state.cluster
        self._speeds: dict[str, float] = {}  # of the job in question, by GPU model
        # kind, kinds on the device, GPU model -> own slowdown, and why the job may not join, if so
        self._slowdowns: dict[tuple[str, tuple[str, ...], str], tuple[float, str]] = {}
        self.why_not = ""  # why the last job does not fit, if not for want of memory

    def takes_repair(self, job: Job) -> bool:
        """Return whether all nodes that could serve the job are down."""
        return not self._cluster.eligible(job).nodes & self._cluster.with_idle(0)

    # -- now ----------------------------------------------------------------------------------

    def find(
        self, job: Job, reserved: Reservation | None = None, refused: Refusal | None = None
    ) -> tuple[Device, ...]:
        """Return the devices on which the job ends first, or none. With a reservation, leave its devices
        alone unless the job is expected to end before it starts. If an earlier plan refused the job under
        the same reservation, look only at what has changed since."""
        self._index.update(self._cluster)
        self.why_not = ""
        among = ALL_NODES
        if refused and refused.holds(job, reserved, self._state):
            self.why_not = refused.why
            changed = sum(node.bit for node in self._cluster.changed_since(refused.version))
            if not changed & self._cluster.eligible(job).nodes:
                return ()
            if not job.may_span_nodes:
                among = changed
        self._speeds = {model: self._state.speed(job, model, job.gpus) for model in self._index.models}
        best = Offer(0.0, 0, ())
        looked_at = offers = 0
        for fastest, nodes in self._by_speed(job, among):
            if best.rate >= fastest:
                break
            for node in self._likely(job, nodes):
                offer = self._offer_of(node, job, reserved)
                if offer:
                    offers += 1
                    best = max(best, offer, key=_quality)
                looked_at += 1
                if best.rate >= fastest or looked_at >= MOST_NODES or offers >= MOST_OFFERS:
                    break
        devices = best.devices
        if not devices and job.may_span_nodes and job.gpus > 1:
            devices = self._across_nodes(job, reserved)
        return self._prefer_linked(devices, job, reserved) if self._cluster.linked else devices

    def _by_speed(self, job: Job, among: NodeSet) -> list[tuple[float, NodeSet]]:
        """Return the nodes that could serve the job by the speed of their fastest devices, the fastest
        first."""
        eligible = self._cluster.eligible(job).nodes & among
        found = [
            (max(self._speeds[model] for model in models), nodes & eligible)
            for models, nodes in self._index.by_models.items()
            if nodes & eligible
        ]
        return sorted(found, key=lambda each: -each[0])

    def _likely(self, job: Job, nodes: NodeSet) -> Iterator[NodeState]:
        """Iterate over the nodes that may have devices for the job: first those with enough idle ones, of
        these first the fullest, then those with room on shared ones."""
        cluster, needed = self._cluster, job.memory_mb + self._limits.reserve_mb
        for _, some in cluster.group_by_idle(nodes, job.gpus):
            yield from cluster.nodes_in(some)
        if job.memory_mb:
            others = nodes & cluster.with_idle(0) & ~cluster.with_idle(job.gpus)
            if others & self._index.sharing(job.memory_mb) & ~self._index.sharing(needed):
                self._note_reserve()
            yield from cluster.nodes_in(others & self._index.with_room(job.gpus, needed))

    def _offer_of(self, node: NodeState, job: Job, reserved: Reservation | None) -> Offer | None:
        """Return the best that the node can offer."""
        offers = self._device_offers(node, job, reserved)
        if len(offers) < job.gpus:
            return None
        if job.gpus == 1:
            return max(offers, key=_quality)
        chosen = sorted(offers, key=_quality, reverse=True)[: job.gpus]
        return Offer(
            chosen[-1].rate,
            sum(each.fullness for each in chosen),
            tuple(device for each in chosen for device in each.devices),
        )

    def _across_nodes(self, job: Job, reserved: Reservation | None) -> tuple[Device, ...]:
        """Return the best devices of all nodes, or none."""
        cluster = self._cluster
        likely = cluster.with_idle(1)
        if job.memory_mb:
            likely |= cluster.with_idle(0) & self._index.sharing(job.memory_mb + self._limits.reserve_mb)
        offers: list[Offer] = []
        for node in cluster.nodes_in(cluster.eligible(job).nodes & likely):
            offers += self._device_offers(node, job, reserved)
            if len(offers) >= MOST_OFFERS * job.gpus:
                break
        if len(offers) < job.gpus:
            return ()
        offers.sort(key=_quality, reverse=True)
        return tuple(device for each in offers[: job.gpus] for device in each.devices)

    def _prefer_linked(
        self, devices: tuple[Device, ...], job: Job, reserved: Reservation | None
    ) -> tuple[Device, ...]:
        """Replace idle devices by others that are linked better and not reserved either."""
        nodes = [self._cluster.nodes[name] for name in {device.node for device in devices}]
        offered = (each.devices[0] for node in nodes for each in self._device_offers(node, job, reserved))
        idle = {device.id for device in offered if not self._cluster.devices[device.id].holders}
        return choose_linked(devices, idle, self._cluster)

    def _device_offers(self, node: NodeState, job: Job, reserved: Reservation | None) -> list[Offer]:
        """Return an offer for each device of the node on which the job may start."""
        if (job.cpus or job.ram_mb) and not node.has_host_room(job):
            return []
        found = []
        accepts_all = self._cluster.eligible(job).accepts_all & node.bit
        for state in node.devices:
            device = state.device
            if not state.fits(job) or not (accepts_all or job.accepts(device)):
                continue
            rate = self._rate_on(state, job)
            if rate and not (
                reserved and reserved.concerns(job, device) and self._delays(job, rate, reserved)
            ):
                found.append(Offer(rate, -state.free_mb, (device,)))
        return found

    def _rate_on(self, state: DeviceState, job: Job) -> float:
        """Return how fast the job would run on the device; 0 if it may not join the jobs there."""
        model = state.device.model
        speed = self._speeds[model]
        if not state.holders:
            return speed
        if state.free_mb < job.memory_mb + self._limits.reserve_mb:
            self._note_reserve()
            return 0.0
        running = self._state.running
        alike = (job.kind, tuple([running[job_id].job.kind for job_id in state.holders]), model)
        known = self._slowdowns.get(alike)
        if known is None:
            others = [running[job_id].job for job_id in state.holders]
            known = self._slowdowns[alike] = self._slow_down(job, others, model)
        own, why_not = known
        if why_not:
            self.why_not = why_not
            return 0.0
        return speed / own

    def _slow_down(self, job: Job, others: list[Job], model: str) -> tuple[float, str]:
        """Return the slowdown of the job beside those others, and why it may not join them; empty if it
        may."""
        slowdown, most = self._state.slowdown, self._limits.most_slowdown
        own = worst = slowdown(job, others, model)
        for place, other in enumerate(others):
            if worst > most:  # asked before each: most devices are left out by the first answer
                break
            worst = slowdown(other, [*others[:place], *others[place + 1 :], job], model)
        if worst <= most:
            return own, ""
        return own, f"a job on them would take {worst:.1f} times as long as alone, and the limit is {most:g}"

    def _delays(self, job: Job, rate: float, reserved: Reservation) -> bool:
        """Return whether the job might still run when the reservation starts."""
        left = abs(remaining_duration(job, self._state.queue.progress(job.id).work_s))
        if self._state.now + left / rate <= reserved.start < math.inf:
            return False
        self.why_not = f"they are reserved for {reserved.job.name or reserved.job.id}, which came first"
        return True

    def _note_reserve(self) -> None:
        if not self.why_not:
            self.why_not = f"{self._limits.reserve_mb} MiB of a shared device are kept in reserve"

    def refuse(self, job: Job, reserved: Reservation | None) -> Refusal:
        """Return the refusal of the job for which `find` has just found no device."""
        cluster, slowdown = self._cluster, self._state.slowdown
        return Refusal(job, reserved, cluster.nodes, slowdown, cluster.version, self.why_not)

    # -- later --------------------------------------------------------------------------------

    def reserve(self, job: Job) -> Reservation | None:
        """Reserve the devices that are expected to have room for the job first; None if it takes a repair."""
        eligible = self._cluster.eligible(job).nodes & self._cluster.with_idle(0)
        accepts_all = self._cluster.eligible(job).accepts_all
        everywhere: list[tuple[float, Device]] = []
        best: tuple[float, list[Device]] = (math.inf, [])
        for number, node in enumerate(self._cluster.nodes_in(eligible)):
            if number >= MOST_NODES and best[1]:
                break
            accepted = [state for state in node.devices if state.healthy]
            if not accepts_all & node.bit:
                accepted = [state for state in accepted if job.accepts(state.device)]
            is_enough = len(accepted) >= job.gpus
            ends = [self._list_ends(state) for state in accepted]
            if is_enough and best[1]:
                sooner = sum([min(each) < best[0] for each in ends])
                if sooner < job.gpus:
                    continue
            here = [
                (self._has_room_at(state, each, job), state.device)
                for state, each in zip(accepted, ends, strict=True)
            ]
            if is_enough:
                here.sort(key=lambda each: each[0])
                start = here[job.gpus - 1][0]
                if start < best[0] or not best[1]:
                    best = (start, [device for _, device in here[: job.gpus]])
            elif job.may_span_nodes:
                everywhere += here
        start, devices = best
        if not devices and len(everywhere) >= job.gpus:
            everywhere.sort(key=lambda each: each[0])
            start, devices = everywhere[job.gpus - 1][0], [device for _, device in everywhere[: job.gpus]]
        if not devices:
            return None
        ids, names = (device.id for device in devices), (device.node for device in devices)
        return Reservation(job, frozenset(ids), frozenset(names), start)

    def is_valid(self, reservation: Reservation) -> bool:
        """Return whether all reserved devices are still there and healthy."""
        devices, nodes = self._cluster.devices, self._cluster.nodes
        return all(each in devices and devices[each].healthy for each in reservation.devices) and all(
            each in nodes and nodes[each].up for each in reservation.nodes
        )

    def _list_ends(self, state: DeviceState) -> list[float]:
        """Return when the jobs on the device are expected to end; of an idle one, now."""
        now, running = self._state.now, self._state.running
        return [_end_of(running[job_id], now) for job_id in state.holders] or [now]

    def _has_room_at(self, state: DeviceState, ends: list[float], job: Job) -> float:
        """Return when the device will have room for the job, if running jobs end as expected."""
        if len(ends) == 1:
            return ends[0]
        free, needed = state.free_mb, job.memory_mb + self._limits.reserve_mb
        alone = not job.memory_mb or needed > state.device.memory_mb
        if not alone:
            for end, share in sorted(zip(ends, state.holders.values(), strict=True)):
                free += share
                if free >= needed:
                    return end
        return max(ends)


def _quality(offer: Offer) -> tuple[float, int]:
    return offer[:2]


def _end_of(running: Running, now: float) -> float:
    """Return when the job ends. One that is late is expected to take as long again as it is late."""
    due = running.due()
    return due if due > now else now + max(now - due, SHORTEST_S)
