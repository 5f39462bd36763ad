"""How many devices each job gets, for jobs that can run on fewer devices or use more.

An elastic policy computes a share for every job, as a number of devices; `resizing` turns the shares into
moves. Where running jobs must not be preempted (`state.can_preempt` is false) only the idle devices are
divided, among the waiting jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heapreplace, merge
from operator import itemgetter

from pydantic import Field

from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.waiting_queue import Rank


class ElasticOptions(PlacementOptions):
    """The options of every elastic policy."""

    min_gain: float = Field(default=0.0, ge=0, title="Least gain of a resize")
    """Grow a running job, which costs a restart, only if that makes it faster by more than this part."""


class MaybeElasticOptions(ElasticOptions):
    """The options of policies that are elastic on demand."""

    elastic: bool = False
    """Give jobs the fewest devices they can run on, hand out the rest, and resize running jobs for that."""


# -- what there is to divide ---------------------------------------------------------------------


Scaling = tuple[float, tuple[float, ...]]  # a job's speed on one device, and its speedups on more


class Division:
    """The devices that may be divided anew, and the jobs that take part.

    A running job takes part unless it may not be preempted, shares a device, or holds none.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.running = {job_id: each for job_id, each in state.running.items() if _is_movable(state, each)}
        held = (device for each in self.running.values() for device in each.devices)
        self.devices = state.cluster.idle + sum(is_usable(state, device) for device in held)
        self._widest_node = max((len(node.devices) for node in state.cluster), default=0)
        self._scaling: dict[str, Scaling] = {}
        self._scaling_by_kind: dict[tuple[object, ...], Scaling] = {}

    @cached_property
    def smallest(self) -> int:
        """The fewest devices on which any of the jobs can run."""
        waiting = [group.least for group in self.state.queue.groups()]
        return min([*waiting, *(each.job.least for each in self.running.values())], default=0)

    def in_order(self, by_running_rank: bool = False) -> Iterator[Job]:
        """Iterate over running and waiting jobs together, in the order in which they would wait; with
        `by_running_rank`, rank the running ones by the policy's `running_rank`."""
        now, queue = self.state.now, self.state.queue
        running: list[tuple[Rank, Job]]
        if by_running_rank:
            last_first = self.state.running_order.last_first(now)
            running = [(rank, each.job) for rank, each in last_first if each.job.id in self.running][::-1]
        else:
            running = [
                (queue.rank_as_waiting(each.job, each.progress(now)), each.job)
                for each in self.running.values()
            ]
            running.sort(key=itemgetter(0))
        waiting = (((rank, job) for rank, _, job in group.in_order()) for group in queue.groups())
        return (job for _, job in merge(running, *waiting, key=itemgetter(0)))

    def select(self, jobs: Iterable[Job], strict: bool = False) -> list[Job]:
        """Return the jobs, in order, that can all have their least number of devices at the same time.
        Strict: stop at the first one that does not fit."""
        selected: list[Job] = []
        room = self.devices
        for job in jobs:
            least = job.least
            if least <= room and least <= self._most(job):
                selected.append(job)
                room -= least
            elif strict:
                break
            if room < self.smallest:
                break
        return selected

    def speedups(self, job: Job) -> tuple[float, ...]:
        """Return the job's speedups: entry k is how many times faster it runs on k devices than on one, up to
        the most it can use. Below its least number of devices it does not run: 0."""
        return (self._scaling.get(job.id) or self._scale(job))[1]

    def speed_on_one(self, job: Job) -> float:
        """Return the job's speed on one device, relative to the number of devices it asks for."""
        return (self._scaling.get(job.id) or self._scale(job))[0]

    def _scale(self, job: Job) -> Scaling:
        least, most, model = job.least, self._most(job), self._model(job)
        key = (job.kind, job.gpus, least, most, model)  # jobs of one kind scale alike
        found = self._scaling_by_kind.get(key)
        if found is None:
            speed = self.state.speed
            on_one = speed(job, model, 1) or speed(job, model, least) / least or 1.0
            rates = [speed(job, model, count) / on_one for count in range(least, most + 1)]
            useful = rates.index(max(rates)) + 1 if rates else 0  # beyond it the job gets no faster
            found = self._scaling_by_kind[key] = (on_one, (0.0,) * least + tuple(rates[:useful]))
        self._scaling[job.id] = found
        return found

    def _most(self, job: Job) -> int:
        """Return the most devices that the job can be given here."""
        return min(job.most, self.devices if job.may_span_nodes else self._widest_node)

    def _model(self, job: Job) -> str:
        """Return the model that the job runs on; if it waits, the first that it accepts."""
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
    """Return whether a job could start on the device if it were free."""
    node = state.cluster.nodes.get(device.node)
    return node is not None and node.up and state.cluster.devices[device.id].healthy


# -- rules ---------------------------------------------------------------------------------------

Shares = dict[str, int]  # job id -> number of devices; the first in order gets its devices first
Rule = Callable[[Division, Sequence[Job]], Shares]


def in_rounds(division: Division, jobs: Sequence[Job]) -> Shares:
    """Give each job its least, then one more device to each in order, in rounds."""
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
    """Give each job its least, then each further device to the job that gains most by it."""
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
    """Return what one more device adds to the job's speedup, negative to sort by; 0 if nothing."""
    curve = division.speedups(job)
    return min(0.0, round(curve[count] - curve[count + 1], 9)) if count + 1 < len(curve) else 0.0
