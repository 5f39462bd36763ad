"""Jobs that can do with fewer devices or use more: who gets how many.

An elastic policy works out a share for every job, as if devices were coins; `resizing` then makes
moves of the shares. Where nothing running may be touched (`state.can_preempt` is false) the idle
devices alone are divided, among the waiting jobs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heapreplace, merge
from operator import itemgetter
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.waiting_queue import Rank


class ElasticOptions(PlacementOptions):
    """What every elastic policy lets people choose."""

    min_gain: float = Field(
        default=0.0,
        ge=0,
        title="Least gain of a resize",
        description="A running job gets more devices only if they make it faster by more than this part "
        "(0.1 is a tenth), since every resize costs a restart.",
    )


class MaybeElasticOptions(ElasticOptions):
    """For policies that are elastic on demand."""

    elastic: bool = Field(
        default=False,
        title="Elastic",
        description="Serve everybody with the fewest devices it can run on, hand the rest out to those "
        "who can use more, and resize running jobs accordingly.",
    )


# -- what there is to divide ---------------------------------------------------------------------


Scaling = tuple[float, tuple[float, ...]]  # a job's speed on one device, and its speedups on more


class Division:
    """The devices that may be divided anew, and the jobs among which.

    Running jobs take part unless they must not be touched, share a device, or hold none at all.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.running = {job_id: each for job_id, each in state.running.items() if _is_movable(state, each)}
        held = (device for each in self.running.values() for device in each.devices)
        self.devices = state.cluster.idle + sum(is_usable(state, device) for device in held)
        self._widest_node = max((len(node.devices) for node in state.cluster), default=0)
        self._scaling: dict[str, Scaling] = {}
        self._scaling_alike: dict[tuple[object, ...], Scaling] = {}

    @cached_property
    def smallest(self) -> int:
        """The fewest devices with which anybody could do anything."""
        waiting = [group.gpus for _, _, _, group in self.state.queue.heads()]
        return min([*waiting, *(each.job.least for each in self.running.values())], default=0)

    def in_order(self, rank: Rank, by_ladder: bool = False) -> Iterator[Job]:
        """Running and waiting jobs together, in the order of this rank; with `by_ladder`, of a policy
        that ranks running jobs by their running_rank alone."""
        now, queue, running_order = self.state.now, self.state.queue, self.state.running_order
        running: list[tuple[Any, ...]]
        if by_ladder:
            running = [(place, each.job) for place, each in running_order.last_first(now)][::-1]
            running = [entry for entry in running if entry[-1].id in self.running]
        else:
            running = [(rank(each.job, each.progress(now)), each.job) for each in self.running.values()]
            running.sort(key=itemgetter(0))
        waiting = [group.in_order() for _, _, _, group in queue.heads()]
        return (entry[-1] for entry in merge(running, *waiting, key=itemgetter(0)))

    def first_served(self, jobs: Iterable[Job], strict: bool = False) -> list[Job]:
        """The jobs that can all have their least at once, each in order that still fits. Strict: the
        first that does not fit ends the row."""
        served: list[Job] = []
        room = self.devices
        for job in jobs:
            least = job.least
            if least <= room and least <= self._most(job):
                served.append(job)
                room -= least
            elif strict:
                break
            if room < self.smallest:
                break
        return served

    def speedups(self, job: Job) -> tuple[float, ...]:
        """[k]: how many times faster the job runs on k devices than on one, up to the most it has a use
        for. On fewer than its least it does not run: 0."""
        return (self._scaling.get(job.id) or self._scale(job))[1]

    def alone(self, job: Job) -> float:
        """The job's speed on one device, measured by what it does on those it asks for."""
        return (self._scaling.get(job.id) or self._scale(job))[0]

    def _scale(self, job: Job) -> Scaling:
        least, most, model = job.least, self._most(job), self._model(job)
        alike = (job.kind, job.gpus, least, most, model)  # jobs of one kind scale alike
        found = self._scaling_alike.get(alike)
        if found is None:
            speed = self.state.speed
            alone = speed(job, model, 1) or speed(job, model, least) / least or 1.0
            rates = [speed(job, model, count) / alone for count in range(least, most + 1)]
            useful = rates.index(max(rates)) + 1 if rates else 0  # beyond it the job gets no faster
            found = self._scaling_alike[alike] = (alone, (0.0,) * least + tuple(rates[:useful]))
        self._scaling[job.id] = found
        return found

    def _most(self, job: Job) -> int:
        """The most devices that the job could be given here."""
        return min(job.most, self.devices if job.may_span_nodes else self._widest_node)

    def _model(self, job: Job) -> str:
        """The model it runs on or, as it waits, the first that it could have."""
        running = self.running.get(job.id)
        if running:
            return running.devices[0].model
        cluster = self.state.cluster
        node = next(cluster.nodes_in(cluster.eligible(job).nodes), None)
        devices = [each.device for each in node.devices] if node else []
        return next((device.model for device in devices if job.accepts(device)), "")


def _is_movable(state: State, running: Running) -> bool:
    if not running.devices or not state.may_preempt(running):
        return False
    devices = state.cluster.devices
    return all(len(devices[each.id].holders) == 1 for each in running.devices)


def is_usable(state: State, device: Device) -> bool:
    """Whether somebody could start on the device, were it free."""
    node = state.cluster.nodes.get(device.node)
    return node is not None and node.up and state.cluster.devices[device.id].healthy


# -- how many for whom ---------------------------------------------------------------------------

Shares = dict[str, int]  # job id -> devices, in the order in which they are to be served
Rule = Callable[[Division, Sequence[Job]], Shares]


def in_rounds(division: Division, jobs: Sequence[Job]) -> Shares:
    """The least for each of the jobs, then one more for each in order, round after round."""
    shares = {job.id: job.least for job in jobs}
    rest = division.devices - sum(shares.values())
    takers = list(jobs)
    while rest and takers:
        takers = [job for job in takers if shares[job.id] + 1 < len(division.speedups(job))]
        for job in takers[:rest]:
            shares[job.id] += 1
        rest -= min(rest, len(takers))
    return shares


def by_gain(division: Division, jobs: Sequence[Job], devices: int | None = None) -> Shares:
    """The least for each of the jobs, then one more for whoever gains most by it, again and again."""
    shares = {job.id: job.least for job in jobs}
    rest = (division.devices if devices is None else devices) - sum(shares.values())
    steps = [
        (step, place, job) for place, job in enumerate(jobs) if (step := _step(division, job, job.least))
    ]
    heapify(steps)
    while rest > 0 and steps:
        _, place, job = steps[0]
        shares[job.id] += 1
        rest -= 1
        step = _step(division, job, shares[job.id])
        if step:
            heapreplace(steps, (step, place, job))
        else:
            heappop(steps)
    return shares


def _step(division: Division, job: Job, count: int) -> float:
    """What one more device adds to the job's speedup, negative to sort by; 0 if that is nothing."""
    curve = division.speedups(job)
    return min(0.0, round(curve[count] - curve[count + 1], 9)) if count + 1 < len(curve) else 0.0
