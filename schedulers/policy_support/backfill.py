"""A forecast of when and where waiting jobs will fit, if running jobs end when they are expected to.

Backfilling lets a small job pass a large one, as long as the large one does not wait longer for it.
That takes a forecast: which devices become free when, and which of them are reserved for which job. A
set of devices is an integer with one bit per device, so that "free by then, accepted and not reserved"
is three operations, even for ten thousand devices.

If endless jobs make it unknown when a job will fit, the devices that suit it best are kept from other
endless jobs: eventually they become free.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from gpu_flows.schedulers.cluster.device_sets import DeviceMap
from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.policy_support.durations import remaining_duration

SHORTEST_S = 0.001  # no job takes less: one that is expected to end immediately still needs its devices


class Slot(NamedTuple):
    """Devices reserved for a job. If it starts at infinity, they are kept from endless jobs only."""

    job: Job
    start: float
    end: float
    devices: int


_End = tuple[float, int, tuple[Device, ...]]  # when, a number that settles ties, the devices released


class Forecast:
    """What a plan knows of the future. Running jobs that would be preempted count as ended already.

    The future is computed only as far as it is asked for, so jobs that end late cost little.
    """

    def __init__(self, state: State, would_preempt: Callable[[Running], bool] | None = None) -> None:
        self._state, self._now, self._cluster = state, state.now, state.cluster
        self._would_preempt = would_preempt
        self._map = DeviceMap.for_cluster(state.cluster)
        self._idle = self._map.idle(state.cluster)
        self._freed = {self._now: self._idle}  # when -> the devices that running jobs release
        self._moments = [self._now]  # when a job or a slot ends, as far as the forecast was computed
        self._ends: list[_End] = [  # the later ends, as a heap
            (self._end_of_running(running), number, running.devices)
            for number, running in enumerate(state.running.values())
        ]
        heapify(self._ends)
        while self._ends and self._ends[0][0] <= self._now:
            self._freed[self._now] |= self._usable(heappop(self._ends)[2])
        self._numbers = count(len(state.running))
        self.slots: list[Slot] = []  # in the order in which they were reserved
        self._vacated: dict[float, int] = {}  # when -> the devices whose slots end
        self._not_before: dict[object, list[tuple[float, float]]] = {}  # request -> duration, earliest start
        self._durations: dict[str, float] = {}  # by job id

    def was_foreseen_by(self, earlier: Forecast) -> bool:
        """Return whether an earlier forecast came true: then its slots are still the best ones."""
        if earlier._map is not self._map:
            return False
        while earlier._ends and earlier._ends[0][0] <= self._now:
            earlier._compute_next()
        idle = 0
        for moment in earlier._moments:
            if moment > self._now:
                break
            idle |= earlier._freed[moment]
        return idle == self._idle

    # -- reservations -------------------------------------------------------------------------

    def reserve(self, job: Job) -> Slot:
        """Reserve devices for the job from the first moment at which it will fit."""
        slot = self._earliest(job) or Slot(job, math.inf, math.inf, self._best_for(job))
        self.keep(slot)
        return slot

    def keep(self, slot: Slot) -> None:
        """Reserve the devices of this slot."""
        self.slots.append(slot)
        length = slot.end - slot.start if slot.start < math.inf else self.duration(slot.job)
        self._not_before.setdefault(slot.job.request, []).append((length, slot.start))
        self._vacated[slot.end] = self._vacated.get(slot.end, 0) | slot.devices
        self._expect(slot.end, ())

    def started(self, job: Job) -> None:
        """Record that the plan has started this job."""
        running = self._state.running[job.id]
        taken = self._map.to_set(running.devices)
        self._idle &= ~taken
        self._freed[self._now] &= ~taken
        self._expect(self._end_of_running(running), running.devices)

    # -- questions ----------------------------------------------------------------------------

    def can_serve(self, job: Job) -> bool:
        """Return whether the job will fit at some time without a repair. Others must not wait for a repair
        with it."""
        return bool(self._best_for(job))

    def duration(self, job: Job) -> float:
        """Return how long the waiting job would run, on the slowest devices that it accepts. A job that ran
        longer than expected is expected to take as long again as it is late."""
        known = self._durations.get(job.id)
        if known is None:
            left = abs(remaining_duration(job, self._state.queue.progress(job.id).work_s))
            models = self._map.models(job, self._cluster)
            slowest = min((self._state.speed(job, model, job.gpus) for model in models), default=1.0)
            known = self._durations[job.id] = max(left / slowest, SHORTEST_S) if slowest > 0 else math.inf
        return known

    def end_of(self, job: Job) -> float:
        """Return when the waiting job would end if it started now."""
        return self._now + self.duration(job)

    def is_brief(self, job: Job) -> bool:
        """Return whether the job would end before the first slot starts."""
        return not self._reserved(self._now, self.end_of(job))

    def has_spare(self, seconds: float) -> bool:
        """Return whether there are idle devices that are not reserved for this long."""
        return bool(self._idle & ~self._reserved(self._now, self._now + seconds))

    def allows(self, job: Job, devices: tuple[Device, ...], end: float) -> bool:
        """Return whether the job may have these devices from now until the end."""
        return not self._map.to_set(devices) & self._reserved(self._now, end) and all(
            self._has_host_room(job, self._cluster.nodes[name], self._now, end)
            for name in {device.node for device in devices}
        )

    def room_now(self, job: Job, options: PlacementOptions) -> tuple[Device, ...]:
        """Return devices on which the job may start now: those of its placement, or else others."""
        devices, end = options.place(job, self._cluster), self.end_of(job)
        if not devices or self.allows(job, devices, end):
            return devices
        devices = self._map.to_devices(self._spare(job, end))
        # Jobs that are to be preempted still hold their devices.
        return () if self._cluster.allocation_error(job, devices) else devices

    def devices_now(self, slot: Slot) -> tuple[Device, ...]:
        """Return the slot's devices if its time has come and they are idle."""
        ready = slot.start <= self._now and not slot.devices & ~self._idle
        return self._map.to_devices(slot.devices) if ready else ()

    # -- internal: time -----------------------------------------------------------------------

    def _end_of_running(self, running: Running) -> float:
        """Return when the job releases its devices. A job that is late is expected to take as long again as
        it is late."""
        if self._would_preempt and self._would_preempt(running):
            return self._now
        due = running.due()
        return due if due > self._now else self._now + max(self._now - due, SHORTEST_S)

    def _expect(self, moment: float, devices: tuple[Device, ...]) -> None:
        """Record that a job or a slot ends at this moment and releases these devices."""
        if moment > self._moments[-1]:
            heappush(self._ends, (moment, next(self._numbers), devices))
            return
        if moment not in self._freed:
            insort(self._moments, moment)
        self._freed[moment] = self._freed.get(moment, 0) | self._usable(devices)

    def _compute_next(self) -> bool:
        """Compute the next moment at which something ends. Return False if there is none."""
        if not self._ends or self._ends[0][0] == math.inf:
            return False
        moment, freed = self._ends[0][0], 0
        while self._ends and self._ends[0][0] == moment:
            freed |= self._usable(heappop(self._ends)[2])
        self._moments.append(moment)
        self._freed[moment] = freed
        return True

    def _earliest(self, job: Job) -> Slot | None:
        """Return the first slot in which the job fits for its whole duration. It is later than now, because
        now was tried already, and not before a shorter job with the same request fits."""
        accepted, duration = self._map.accepted(job, self._cluster), self.duration(job)
        known = self._not_before.get(job.request, ())
        floor = max((start for length, start in known if length <= duration), default=self._now)
        free, index = self._freed[self._now], 1
        while floor < math.inf and (index < len(self._moments) or self._compute_next()):
            moment = self._moments[index]
            free |= self._freed[moment]
            index += 1
            if moment >= floor and (free & accepted).bit_count() >= job.gpus:
                devices = self._choose(job, free & accepted, moment, moment + duration)
                if devices:
                    return Slot(job, moment, moment + duration, devices)
        return None

    def _reserved(self, start: float, end: float) -> int:
        """Return the devices that are reserved at any time between these two."""
        devices = 0
        for slot in self.slots:
            if (slot.start < end or end == math.inf) and start < slot.end:
                devices |= slot.devices
        return devices

    # -- internal: space ----------------------------------------------------------------------

    def _spare(self, job: Job, end: float) -> int:
        """Return idle devices for the job that are not reserved until the end."""
        able = self._cluster.eligible(job).nodes
        free = self._idle & self._map.accepted(job, self._cluster) & ~self._reserved(self._now, end)
        free &= ~self._crowded(job, able, self._now, end)
        for node in self._cluster.nodes_in(able & self._cluster.with_idle(job.gpus)):
            here = free & self._map.on_node(node.name)
            if here.bit_count() >= job.gpus:
                return self._map.first(here, job.gpus)
        return self._map.first(free, job.gpus) if job.may_span_nodes and free.bit_count() >= job.gpus else 0

    def _choose(self, job: Job, free: int, start: float, end: float) -> int:
        """Choose devices for the job among those free at the start and not reserved until the end. Of the
        possible choices, take the one that leaves the most to jobs that can start now. The job did not
        fit a moment earlier, so only nodes where something ends at the start are tried."""
        fresh = self._map.to_nodes(self._freed[start] | self._vacated.get(start, 0))
        nodes = fresh & self._cluster.eligible(job).nodes
        places = [free & self._map.on_node(node.name) for node in self._cluster.nodes_in(nodes)]
        places = [place for place in places if place.bit_count() >= job.gpus]
        if job.may_span_nodes:
            nodes = self._cluster.eligible(job).nodes
            places.append(free)
        if not places:
            return 0
        free &= ~self._reserved(start, end) & ~self._crowded(job, nodes, start, end)
        choices = [self._latest(place & free, job.gpus) for place in places]
        enough = [choice for choice in choices if choice.bit_count() == job.gpus]
        now, idle = self._freed[self._now], self._idle
        return min(
            enough, key=lambda choice: ((choice & now).bit_count(), (choice & idle).bit_count()), default=0
        )

    def _latest(self, devices: int, count: int) -> int:
        """Choose up to `count` of these devices, idle ones last."""
        chosen, now = 0, self._freed[self._now]
        for some in (devices & ~now, devices & now & ~self._idle, devices & self._idle):
            chosen |= self._map.first(some, count - chosen.bit_count())
        return chosen

    def _best_for(self, job: Job) -> int:
        """Return devices for the job once endless jobs have ended, on the node with the most idle ones."""
        sound = self._map.accepted(job, self._cluster) & ~self._broken
        if job.may_span_nodes:
            return sound if sound.bit_count() >= job.gpus else 0
        able = self._cluster.eligible(job).nodes
        for idle in range(job.gpus, -1, -1):
            for node in self._cluster.nodes_in(able & self._cluster.with_idle(idle)):
                here = sound & self._map.on_node(node.name)
                if here.bit_count() >= job.gpus:
                    return here
        return 0

    @cached_property
    def _broken(self) -> int:
        """The devices that are unhealthy or on a node that is down."""
        return self._map.unavailable(self._cluster)

    def _usable(self, devices: tuple[Device, ...]) -> int:
        """Return the devices that another job can have after their present holder."""
        known, nodes = self._cluster.devices, self._cluster.nodes
        return self._map.to_set(
            device
            for device in devices
            if device.id in known and known[device.id].healthy and nodes[device.node].up
        )

    def _crowded(self, job: Job, nodes: int, start: float, end: float) -> int:
        """Return the devices of those nodes that have too few processors or too little memory for the job."""
        devices = 0
        if job.cpus or job.ram_mb:
            for node in self._cluster.nodes_in(nodes):
                if not self._has_host_room(job, node, start, end):
                    devices |= self._map.on_node(node.name)
        return devices

    def _has_host_room(self, job: Job, node: NodeState, start: float, end: float) -> bool:
        """Return whether the node's processors and memory suffice from start to end."""
        if not (job.cpus or job.ram_mb):
            return True
        here = self._map.on_node(node.name)
        slots = [slot for slot in self.slots if slot.devices & here and slot.start < end and start < slot.end]
        holders = {job_id for state in node.devices for job_id in state.holders}
        others = [self._state.running[job_id] for job_id in holders]
        for moment in {start, *(slot.start for slot in slots if slot.start > start)}:
            coming = [slot.job for slot in slots if slot.start <= moment < slot.end]
            ended = [running.job for running in others if self._end_of_running(running) <= moment]
            cpus = node.free_cpus + sum(other.cpus for other in ended) - sum(other.cpus for other in coming)
            ram = node.free_ram_mb + sum(other.ram_mb for other in ended)
            ram -= sum(other.ram_mb for other in coming)
            if (node.node.cpus and job.cpus > cpus + 1e-9) or (node.node.ram_mb and job.ram_mb > ram):
                return False
        return True
