"""When and where waiting jobs will fit, if running jobs end when they are expected to.

Backfilling lets a small job pass a large one, as long as the large one does not wait longer for it.
That takes a forecast: which devices come free when, and what of that is kept for whom. A set of
devices is a whole number, a bit a device, so that "free by then, accepted, not kept for somebody" is
three operations, on ten thousand devices too.

Where nobody knows when a job will fit, because endless jobs are in its way, the devices that will
serve it best are kept from other endless jobs: sooner or later they come free.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from heapq import heapify, heappop, heappush, merge
from itertools import count
from typing import NamedTuple

from gpu_flows.schedulers.cluster.device_sets import DeviceMap, lowest
from gpu_flows.schedulers.cluster.state import NodeState
from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.policy_support.starting import expected
from gpu_flows.schedulers.waiting_queue import Entry, Group

BLINK_S = 0.001  # no job takes less: one that is expected to end at once needs its devices all the same


def in_order(groups: Iterable[Group]) -> Iterator[Entry]:
    """The jobs of these groups in the policy's order, at the price of those looked at."""
    return merge(*(group.in_order() for group in groups))


class Slot(NamedTuple):
    """Devices kept for a job. One that begins at infinity is kept from endless jobs only."""

    job: Job
    start: float
    end: float
    devices: int


_End = tuple[float, int, tuple[Device, ...]]  # when, a number that settles ties, the devices let go of


class Forecast:
    """What a plan knows of the future. Running jobs that would yield count as gone already.

    The future is looked into only as far as somebody asks: jobs that end late cost next to nothing.
    """

    def __init__(self, state: State, yields: Callable[[Running], bool] | None = None) -> None:
        self._state, self._now, self._cluster, self._yields = state, state.now, state.cluster, yields
        self._map = DeviceMap.of(state.cluster)
        self._idle = self._map.idle(state.cluster)
        self._freed = {self._now: self._idle}  # when -> the devices that running jobs let go of
        self._moments = [self._now]  # when anything ends, slots included, as far as was looked
        self._ends: list[_End] = [  # what comes later, as a heap
            (self._leaves(each), number, each.devices) for number, each in enumerate(state.running.values())
        ]
        heapify(self._ends)
        while self._ends and self._ends[0][0] <= self._now:
            self._freed[self._now] |= self._usable(heappop(self._ends)[2])
        self._numbers = count(len(state.running))
        self.slots: list[Slot] = []  # in the order in which they were promised
        self._vacated: dict[float, int] = {}  # when -> the devices whose slots end
        self._floors: dict[object, list[tuple[float, float]]] = {}  # ask -> how long, and not before when
        self._takes: dict[str, float] = {}  # job id -> how long it would run

    def foreseen_by(self, earlier: Forecast) -> bool:
        """Whether all went as an earlier forecast said: then its slots are still the best there are."""
        if earlier._map is not self._map:
            return False
        while earlier._ends and earlier._ends[0][0] <= self._now:
            earlier._look_further()
        idle = 0
        for moment in earlier._moments:
            if moment > self._now:
                break
            idle |= earlier._freed[moment]
        return idle == self._idle

    # -- promises -----------------------------------------------------------------------------

    def promise(self, job: Job) -> Slot:
        """Keep devices for the job from the first moment on at which it will fit."""
        slot = self._earliest(job) or Slot(job, math.inf, math.inf, self._best_for(job))
        self.keep(slot)
        return slot

    def keep(self, slot: Slot) -> None:
        """Nobody else gets these devices at that time."""
        self.slots.append(slot)
        length = slot.end - slot.start if slot.start < math.inf else self.takes(slot.job)
        self._floors.setdefault(slot.job.request, []).append((length, slot.start))
        self._vacated[slot.end] = self._vacated.get(slot.end, 0) | slot.devices
        self._expect(slot.end, ())

    def started(self, job: Job) -> None:
        """The plan has started this job."""
        running = self._state.running[job.id]
        taken = self._map.set_of(running.devices)
        self._idle &= ~taken
        self._freed[self._now] &= ~taken
        self._expect(self._leaves(running), running.devices)

    # -- questions ----------------------------------------------------------------------------

    def can_serve(self, job: Job) -> bool:
        """Whether the job will fit some day without a repair. Nobody should wait for that with it."""
        return bool(self._best_for(job))

    def takes(self, job: Job) -> float:
        """How long the waiting job would run, on the slowest devices that it accepts. One that ran for
        longer than expected is expected to take as long again as it is late."""
        known = self._takes.get(job.id)
        if known is None:
            left = abs(expected(job) - self._state.queue.progress(job.id).work_s)
            models = self._map.models(job, self._cluster)
            slowest = min((self._state.speed(job, model, job.gpus) for model in models), default=1.0)
            known = self._takes[job.id] = max(left / slowest, BLINK_S) if slowest > 0 else math.inf
        return known

    def end_of(self, job: Job) -> float:
        """When the waiting job would end, were it to start now."""
        return self._now + self.takes(job)

    def is_brief(self, job: Job) -> bool:
        """Whether the job would end before anything is kept for somebody."""
        return not self._kept(self._now, self.end_of(job))

    def has_spare(self, seconds: float) -> bool:
        """Whether there are idle devices that are kept for nobody for so long."""
        return bool(self._idle & ~self._kept(self._now, self._now + seconds))

    def allows(self, job: Job, devices: tuple[Device, ...], end: float) -> bool:
        """Whether the job may have these devices from now until then."""
        return not self._map.set_of(devices) & self._kept(self._now, end) and all(
            self._has_host_room(job, self._cluster.nodes[name], self._now, end)
            for name in {device.node for device in devices}
        )

    def room_now(self, job: Job, options: PlacementOptions) -> tuple[Device, ...]:
        """Devices on which the job may start now: those of its placement, or else others."""
        devices, end = options.place(job, self._cluster), self.end_of(job)
        if not devices or self.allows(job, devices, end):
            return devices
        devices = self._map.devices_in(self._spare(job, end))
        return () if self._cluster.objection(job, devices) else devices  # who would yield is still there

    def devices_now(self, slot: Slot) -> tuple[Device, ...]:
        """The slot's devices, if its time has come and they are idle."""
        ready = slot.start <= self._now and not slot.devices & ~self._idle
        return self._map.devices_in(slot.devices) if ready else ()

    # -- inside: time -------------------------------------------------------------------------

    def _leaves(self, running: Running) -> float:
        """When the job lets go of its devices. One that is late is expected to take as long again as it
        is late."""
        if self._yields and self._yields(running):
            return self._now
        due = running.due()
        return due if due > self._now else self._now + max(self._now - due, BLINK_S)

    def _expect(self, moment: float, devices: tuple[Device, ...]) -> None:
        """Something ends then, and lets go of these devices."""
        if moment > self._moments[-1]:
            heappush(self._ends, (moment, next(self._numbers), devices))
            return
        if moment not in self._freed:
            insort(self._moments, moment)
        self._freed[moment] = self._freed.get(moment, 0) | self._usable(devices)

    def _look_further(self) -> bool:
        """Find out what happens next. False if nothing does."""
        if not self._ends or self._ends[0][0] == math.inf:
            return False
        moment, freed = self._ends[0][0], 0
        while self._ends and self._ends[0][0] == moment:
            freed |= self._usable(heappop(self._ends)[2])
        self._moments.append(moment)
        self._freed[moment] = freed
        return True

    def _earliest(self, job: Job) -> Slot | None:
        """The first moment from which on the job fits for as long as it takes. That is later than now,
        where it was tried, and not before a shorter job with the same ask fits."""
        accepted, takes = self._map.accepted(job, self._cluster), self.takes(job)
        known = self._floors.get(job.request, ())
        floor = max((start for length, start in known if length <= takes), default=self._now)
        free, index = self._freed[self._now], 1
        while floor < math.inf and (index < len(self._moments) or self._look_further()):
            moment = self._moments[index]
            free |= self._freed[moment]
            index += 1
            if moment >= floor and (free & accepted).bit_count() >= job.gpus:
                devices = self._choose(job, free & accepted, moment, moment + takes)
                if devices:
                    return Slot(job, moment, moment + takes, devices)
        return None

    def _kept(self, start: float, end: float) -> int:
        """The devices kept for somebody at any time between these two."""
        devices = 0
        for slot in self.slots:
            if (slot.start < end or end == math.inf) and start < slot.end:
                devices |= slot.devices
        return devices

    # -- inside: space ------------------------------------------------------------------------

    def _spare(self, job: Job, end: float) -> int:
        """Idle devices for the job that are kept for nobody until then."""
        able = self._cluster.able(job).nodes
        free = self._idle & self._map.accepted(job, self._cluster) & ~self._kept(self._now, end)
        free &= ~self._crowded(job, able, self._now, end)
        for node in self._cluster.those(able & self._cluster.with_idle(job.gpus)):
            here = free & self._map.on(node.name)
            if here.bit_count() >= job.gpus:
                return lowest(here, job.gpus)
        return lowest(free, job.gpus) if job.may_span_nodes and free.bit_count() >= job.gpus else 0

    def _choose(self, job: Job, free: int, start: float, end: float) -> int:
        """Devices for the job, of those free at the start, that are kept for nobody until the end. Of the
        possible choices, the one that leaves the most to those who can start now. The job did not fit a
        moment ago, so it does now only on nodes where something has just ended: no others are tried."""
        fresh = self._map.nodes_of(self._freed[start] | self._vacated.get(start, 0))
        nodes = fresh & self._cluster.able(job).nodes
        places = [free & self._map.on(node.name) for node in self._cluster.those(nodes)]
        places = [place for place in places if place.bit_count() >= job.gpus]
        if job.may_span_nodes:
            nodes = self._cluster.able(job).nodes
            places.append(free)
        if not places:
            return 0
        free &= ~self._kept(start, end) & ~self._crowded(job, nodes, start, end)
        choices = [self._latest(place & free, job.gpus) for place in places]
        enough = [choice for choice in choices if choice.bit_count() == job.gpus]
        now, idle = self._freed[self._now], self._idle
        return min(
            enough, key=lambda choice: ((choice & now).bit_count(), (choice & idle).bit_count()), default=0
        )

    def _latest(self, devices: int, count: int) -> int:
        """So many of these devices, idle ones last; fewer if there are not enough."""
        chosen, now = 0, self._freed[self._now]
        for some in (devices & ~now, devices & now & ~self._idle, devices & self._idle):
            chosen |= lowest(some, count - chosen.bit_count())
        return chosen

    def _best_for(self, job: Job) -> int:
        """Devices that can serve the job once endless jobs are gone: on the node with the most idle ones."""
        sound = self._map.accepted(job, self._cluster) & ~self._broken
        if job.may_span_nodes:
            return sound if sound.bit_count() >= job.gpus else 0
        able = self._cluster.able(job).nodes
        for idle in range(job.gpus, -1, -1):
            for node in self._cluster.those(able & self._cluster.with_idle(idle)):
                here = sound & self._map.on(node.name)
                if here.bit_count() >= job.gpus:
                    return here
        return 0

    @cached_property
    def _broken(self) -> int:
        """What is sick or on a node that is down."""
        return self._map.broken(self._cluster)

    def _usable(self, devices: tuple[Device, ...]) -> int:
        """Those of the devices that somebody else can have after their present holder."""
        known, nodes = self._cluster.devices, self._cluster.nodes
        return self._map.set_of(
            device
            for device in devices
            if device.id in known and known[device.id].healthy and nodes[device.node].up
        )

    def _crowded(self, job: Job, nodes: int, start: float, end: float) -> int:
        """The devices on those of the nodes that have too little beside them for the job."""
        devices = 0
        if job.cpus or job.ram_mb:
            for node in self._cluster.those(nodes):
                if not self._has_host_room(job, node, start, end):
                    devices |= self._map.on(node.name)
        return devices

    def _has_host_room(self, job: Job, node: NodeState, start: float, end: float) -> bool:
        """Whether the node's processors and memory will suffice all the time."""
        if not (job.cpus or job.ram_mb):
            return True
        here = self._map.on(node.name)
        slots = [slot for slot in self.slots if slot.devices & here and slot.start < end and start < slot.end]
        holders = {job_id for state in node.devices for job_id in state.holders}
        others = [self._state.running[job_id] for job_id in holders]
        for moment in {start, *(slot.start for slot in slots if slot.start > start)}:
            coming = [slot.job for slot in slots if slot.start <= moment < slot.end]
            gone = [running.job for running in others if self._leaves(running) <= moment]
            cpus = node.free_cpus + sum(each.cpus for each in gone) - sum(each.cpus for each in coming)
            ram = node.free_ram_mb + sum(each.ram_mb for each in gone) - sum(each.ram_mb for each in coming)
            if (node.node.cpus and job.cpus > cpus + 1e-9) or (node.node.ram_mb and job.ram_mb > ram):
                return False
        return True
