"""Tiresias: jobs that have had the least service run first; durations need not be known.

In the paper every queue is a list with running jobs in front and waiting ones behind. Jobs that arrive or
are demoted from the queue above join at its end. At every event all queues are walked in order: a job that
fits keeps running or starts, and one that does not is stopped and goes before those that wait already.

Here no list is walked. A job's position in its list is a few numbers by which running and waiting jobs
compare. They do not change while `run_by_rank` does what the walk would do; afterwards the jobs that were
started or stopped get new ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heappop, heappush
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gpu_flows.schedulers.model import NO_PROGRESS, Job, Progress, Running
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.elastic import MaybeElasticOptions, by_gain
from gpu_flows.schedulers.policy_support.gittins import SLACK, Gittins
from gpu_flows.schedulers.policy_support.resizing import run_elastic
from gpu_flows.schedulers.policy_support.starting import run_by_rank
from gpu_flows.schedulers.running_order import RunningRank


def _check_rising(limits: list[float]) -> list[float]:
    if any(high <= low for low, high in zip([0.0, *limits], limits, strict=False)):
        raise ValueError("limits must be above 0 and each above the one before it, such as [3250, 7200]")
    return limits


class TiresiasOptions(MaybeElasticOptions):
    discipline: Literal["las", "gittins"] = "las"
    """The order inside a queue: by arrival there (las), or by the Gittins index of the service attained."""

    limits: Annotated[list[float], AfterValidator(_check_rising)] = Field(
        default=[3250.0, 7200.0], title="Queue limits (GPU-seconds)"
    )
    """A job that has had this much service moves to the next queue; the last queue has no limit."""

    quantum: float = Field(default=3250.0, gt=0, title="Quantum (GPU-seconds)")
    """With gittins: how far the index looks ahead, and how often a running job's index is updated."""

    samples: list[float] = Field(default=[], title="Samples (GPU-seconds)")
    """With gittins: the service of earlier jobs. If empty, it is learned from the jobs that end."""

    promote: float = Field(default=0.0, ge=0, title="Promote after")
    """A job that waits this many times as long as it ran starts again in the first queue; 0 never."""


class _Position:
    """One job's position in the list of its queue."""

    __slots__ = ("due", "forgiven", "place", "queue", "runs")

    def __init__(self, place: tuple[int, int, int]) -> None:
        self.queue = 0
        self.place = place  # sorts the list: running, stopped or arrived, and since when
        self.runs = False  # as of the last plan
        self.due = math.inf  # when it changes queues, if nothing happens before
        self.forgiven = NO_PROGRESS  # the progress at its last promotion, which no longer counts


class Tiresias(Policy[TiresiasOptions]):
    """Jobs that have had the least service, devices times time, run first; others are preempted for them.

    Queues by attained service with first come, first served inside a queue (2D-LAS), or with the
    Gittins index of the service that earlier jobs took (2D-Gittins). Gu et al., "Tiresias: A GPU
    Cluster Manager for Distributed Deep Learning", NSDI 2019. Nothing must be known about a job.

    Work conserving. A long job starves while enough short ones keep arriving, unless `promote` is set.
    The placement decides which devices a job gets; the paper consolidates only jobs whose largest
    tensor dominates and spreads all others. With `elastic` the first jobs in order get the fewest
    devices they can run on, and each further device goes to the job that gains most by it.

    With `placement: any` this gives exactly the results of the authors' simulator, except for one
    mistake in it: as published it takes seconds run for GPU-seconds when it looks for the next change
    of queues, and so demotes jobs of several devices too late (5,000 jobs of the Philly trace on 400
    GPUs have a mean turnaround of 8322.3 s there, and of 8317.9 s with that corrected, and here). As
    there, queues change on whole seconds.
    """

    name = "tiresias"
    preempts = True
    moves_running = True
    optimizes = "mean turnaround, without knowing durations"
    promises = ("work conserving",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._positions: dict[str, _Position] = {}
        self._changed: set[str] = set()  # jobs that may have been started or stopped since the last plan
        self._numbers = count(1)
        self._plans = 0
        self._now = 0.0
        self._changes: list[tuple[float, tuple[int, float, str]]] = []  # heap of (due, job.order)
        self._gittins = Gittins(self.options.quantum, self.options.samples)
        self._by_index = self.options.discipline == "gittins"
        self._learns = self._by_index and not self.options.samples
        self._held: dict[str, Running] = {}  # the jobs that ran when last seen, to notice which ended

    def plan(self, state: State) -> None:
        self._now = state.now
        self._plans += 1
        self._change_queues(state)
        if self._learns:
            self._learn(state)
        if self.options.elastic:
            run_elastic(state, self.options, by_gain, by_running_rank=True)
        else:
            run_by_rank(state, self.options)
        self._update_places(state)
        self._forget(state)
        state.draft.wake_at(self._next_change(state))

    # -- ranks: queue, Gittins index, place in the queue's list -------------------------------

    def rank(self, job: Job, progress: Progress) -> tuple[float, ...]:
        position = self._position(job)
        if position.runs:
            self._changed.add(job.id)
        if self._learns:
            self._held.pop(job.id, None)
        value = self._value(position, max(0.0, progress.gpu_s - position.forgiven.gpu_s))
        self._expect_change(position, job, self._promotion(position, progress))
        return value

    def running_rank(self, running: Running) -> RunningRank | None:
        if not running.devices:
            return None
        job = running.job
        position = self._position(job)
        if not position.runs:
            self._changed.add(job.id)
        if self._learns:
            self._held[job.id] = running
        now = max(self._now, running.since)
        attained = max(0.0, running.gpu_seconds(now) - position.forgiven.gpu_s)
        value = self._value(position, attained)
        remaining = self._service_to_change(position.queue, attained)
        self._expect_change(position, job, now + remaining / len(running.devices))
        return RunningRank(value)

    def _position(self, job: Job) -> _Position:
        position = self._positions.get(job.id)
        if position is None:
            position = self._positions[job.id] = _Position(self._at_the_end())
        return position

    def _value(self, position: _Position, attained: float) -> tuple[float, ...]:
        """Return what running and waiting jobs sort by, and update the job's queue."""
        position.queue = bisect_right(self.options.limits, attained + SLACK)
        return (position.queue, -self._gittins.index(attained) if self._by_index else 0.0, *position.place)

    # -- places in a list: running jobs, stopped ones (the latest first), arrived ones --------

    def _among_the_running(self) -> tuple[int, int, int]:
        return (0, 0, next(self._numbers))

    def _before_the_waiting(self, position: _Position) -> tuple[int, int, int]:
        return (1, -self._plans, position.place[2])

    def _at_the_end(self) -> tuple[int, int, int]:
        return (2, 0, next(self._numbers))

    def _update_places(self, state: State) -> None:
        """Put the jobs that this plan started among the running ones, and those it stopped before the
        waiting ones."""
        changed = [
            (self._positions[job_id].place, job_id) for job_id in self._changed if _is_known(state, job_id)
        ]
        self._changed.clear()
        for _, job_id in sorted(changed):
            position = self._positions[job_id]
            runs = job_id in state.running
            if runs and position.place[0]:
                position.place = self._among_the_running()
                state.draft.rerank(job_id)
            elif not runs and not position.place[0]:
                position.place = self._before_the_waiting(position)
                state.draft.rerank(job_id)
            position.runs = runs

    # -- changes of queues --------------------------------------------------------------------

    def _service_to_change(self, queue: int, attained: float) -> float:
        """Return how much more service changes a running job's queue or index."""
        limits = self.options.limits
        limit = limits[queue] if queue < len(limits) else math.inf
        if self._by_index:
            limit = min(limit, self._gittins.next_change(attained))
        return limit - attained

    def _promotion(self, position: _Position, progress: Progress) -> float:
        """Return when a waiting job is promoted to the first queue."""
        if not self.options.promote or not position.queue or progress.stopped is None:
            return math.inf
        return progress.stopped + self.options.promote * (progress.ran_s - position.forgiven.ran_s)

    def _expect_change(self, position: _Position, job: Job, due: float) -> None:
        due = math.ceil(due) if due < math.inf else due
        if due != position.due:
            position.due = due
            if due < math.inf:
                heappush(self._changes, (due, job.order))

    def _next_change(self, state: State) -> float:
        """Return when the next job changes queues. Outdated entries on the way are dropped."""
        changes = self._changes
        while changes:
            due, (_, _, job_id) = changes[0]
            position = self._positions.get(job_id)
            if position and position.due == due and _is_known(state, job_id):
                return due
            heappop(changes)
        return math.inf

    def _change_queues(self, state: State) -> None:
        """Promote the waiting jobs and demote the running ones whose time has come."""
        while self._next_change(state) <= state.now:
            job_id = heappop(self._changes)[1][2]
            position = self._positions[job_id]
            position.due = math.inf
            if job_id in state.queue:
                position.forgiven, position.place = state.queue.progress(job_id), self._at_the_end()
                state.draft.rerank(job_id)
                continue
            before = position.queue
            state.draft.rerank(job_id)
            if position.queue != before:
                position.place = self._at_the_end()
                self._changed.add(job_id)
                state.draft.rerank(job_id)

    # -- the service of earlier jobs ----------------------------------------------------------

    def _learn(self, state: State) -> None:
        """Add the service of jobs that ended since the last plan, and rank all jobs again if that changes
        the index."""
        if len(self._held) != len(state.running):
            for job_id in sorted(self._held.keys() - state.running.keys()):
                self._gittins.learn(self._held.pop(job_id).gpu_seconds(state.now))
        if self._gittins.refresh():
            state.draft.rerank_all()

    def _forget(self, state: State) -> None:
        """Drop the positions of jobs that ended, from time to time."""
        if len(self._positions) > 2 * (len(state.running) + len(state.queue)) + 1_000:
            for job_id in [each for each in self._positions if not _is_known(state, each)]:
                del self._positions[job_id]


def _is_known(state: State, job_id: str) -> bool:
    return job_id in state.running or job_id in state.queue
