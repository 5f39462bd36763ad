"""Tiresias: the less service a job has had, the sooner it is served; nobody needs to know durations.

Each queue is a list: running jobs in front, waiting ones behind. Those who arrive or come down from
the queue above join at its end, and at every event all queues are walked in order: who fits stays or
starts, who does not is stopped and goes before those who wait already. Here the walk is never made.
A job's place in its list is a number that it keeps as long as it does not change sides, the places
of those that run and those that wait compare with each other, and serving by rank does the rest.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heappop, heappush
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gpu_flows.schedulers.gittins import SLACK, Gittins
from gpu_flows.schedulers.ladder import Standing
from gpu_flows.schedulers.model import NO_PROGRESS, Job, Plan, Progress, Running
from gpu_flows.schedulers.placement import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.serving import serve_by_rank


def _rising(limits: list[float]) -> list[float]:
    if any(high <= low for low, high in zip([0.0, *limits], limits, strict=False)):
        raise ValueError("limits must be above 0 and each above the one before it, such as [3250, 7200]")
    return limits


class TiresiasOptions(PlacementOptions):
    discipline: Literal["las", "gittins"] = Field(
        default="las",
        title="Discipline",
        description="Order inside a queue: as they came (las), or by the Gittins index of what they had.",
    )
    limits: Annotated[list[float], AfterValidator(_rising)] = Field(
        default=[3250.0, 7200.0],
        title="Queue limits (GPU-seconds)",
        description="A job that has had this much service moves to the next queue; one queue more than limits.",
    )
    quantum: float = Field(
        default=3250.0,
        gt=0,
        title="Quantum (GPU-seconds)",
        description="With gittins: how far the index looks ahead, and how often a running job is judged.",
    )
    samples: list[float] = Field(
        default=[],
        title="Samples (GPU-seconds)",
        description="With gittins: service of earlier jobs to judge by. Empty learns it from jobs that end.",
    )
    promote: float = Field(
        default=0.0,
        ge=0,
        title="Promote after",
        description="A job that waits this many times as long as it ran starts anew in the first queue; "
        "0 never.",
    )


class _Place:
    """Where one job stands in its queue's list."""

    __slots__ = ("began", "due", "forgiven", "fresh", "queue", "running", "runs", "waits")

    def __init__(self, number: int) -> None:
        self.queue = 0
        self.waits = (0, number)  # its place among those who wait: at the end
        self.runs = 0  # its place among those who run
        self.running = False
        self.began = 0  # the plan that gave it devices
        self.fresh = 0  # the plan in which it came down: in that one it stands behind those who wait
        self.due = math.inf  # when it changes queues, if nothing happens before
        self.forgiven = NO_PROGRESS  # what it had when it was last promoted


class Tiresias(Policy):
    """Jobs that have had the least service, devices times time, run first; the others yield to them.

    Queues by attained service with first come, first served inside a queue (2D-LAS), or with the
    Gittins index of the service that earlier jobs took (2D-Gittins). Gu et al., "Tiresias: A GPU
    Cluster Manager for Distributed Deep Learning", NSDI 2019. Needs to know nothing about a job.

    Work conserving. A long job starves while enough short ones keep coming, unless `promote` is set.
    Which devices a job gets is up to the placement; the paper gathers only jobs whose largest tensor
    dominates and lets all others spread.

    With `placement: any` this is the authors' simulator to the digit, but for one slip in it: as
    shipped it looks for the next change of queues by seconds run in the place of GPU-seconds had,
    and so comes too late to jobs of several devices. As there, queues change on whole seconds.
    """

    name = "tiresias"
    Options = TiresiasOptions
    options: TiresiasOptions
    preempts = True
    moves_running = True
    optimizes = "mean turnaround, without knowing durations"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._places: dict[str, _Place] = {}
        self._numbers = count(1)
        self._plans = 1  # this plan's number
        self._now = 0.0
        self._moments: list[tuple[float, tuple[int, float, str]]] = []  # heap of (due, job.order)
        self._gittins = Gittins(self.options.quantum, self.options.samples)
        self._by_index = self.options.discipline == "gittins"
        self._learns = self._by_index and not self.options.samples
        self._held: dict[str, Running] = {}  # who ran when last seen, to notice who ended

    def plan(self, state: State) -> Plan:
        self._now = state.now
        self._plans += 1
        if self._learns:
            self._learn(state)
        came_down = self._change_queues(state)
        serve_by_rank(state, self.options)
        self._settle(state, came_down)
        self._forget(state)
        return state.draft.plan(self._next_moment(state))

    # -- a job's place ------------------------------------------------------------------------

    def rank(self, job: Job, progress: Progress) -> Any:
        place = self._place(job)
        if place.running:
            place.running = False
            # Stopped, it goes before those who wait already. A start or a step down of this very
            # plan leaves it where it was.
            if self._plans not in (place.began, place.fresh):
                place.waits = (-self._plans, place.runs)
            self._held.pop(job.id, None)
        attained = max(0.0, progress.gpu_s - place.forgiven.gpu_s)
        place.queue = bisect_right(self.options.limits, attained + SLACK)
        self._expect(place, job, self._promotion(place, progress))
        return (job.line, (place.queue, -self._index(attained), 1, *place.waits), job.submitted, job.id)

    def standing(self, running: Running) -> Standing | None:
        if not running.devices:
            return None
        job = running.job
        place = self._place(job)
        if not place.running:
            place.running = True
            if place.waits[0] != -self._plans:  # else this very plan stopped it: it keeps its place
                place.runs, place.began = next(self._numbers), self._plans
        if self._learns:
            self._held[job.id] = running
        now = max(self._now, running.since)
        attained = max(0.0, running.gpu_seconds(now) - place.forgiven.gpu_s)
        place.queue = bisect_right(self.options.limits, attained + SLACK)
        self._expect(place, job, now + self._stretch(place.queue, attained) / len(running.devices))
        turn = (1, *place.waits) if place.fresh == self._plans else (0, 0, place.runs)
        return Standing((place.queue, -self._index(attained), *turn))

    def _place(self, job: Job) -> _Place:
        place = self._places.get(job.id)
        if place is None:
            place = self._places[job.id] = _Place(next(self._numbers))
        return place

    def _index(self, attained: float) -> float:
        return self._gittins.index(attained) if self._by_index else 0.0

    # -- when places change -------------------------------------------------------------------

    def _stretch(self, queue: int, attained: float) -> float:
        """How much more service brings a running job to another place."""
        limits = self.options.limits
        mark = limits[queue] if queue < len(limits) else math.inf
        if self._by_index:
            mark = min(mark, self._gittins.next_change(attained))
        return mark - attained

    def _promotion(self, place: _Place, progress: Progress) -> float:
        """When a waiting job will have waited for too long."""
        if not self.options.promote or not place.queue or progress.stopped is None:
            return math.inf
        return progress.stopped + self.options.promote * (progress.ran_s - place.forgiven.ran_s)

    def _expect(self, place: _Place, job: Job, due: float) -> None:
        due = math.ceil(due) if due < math.inf else due
        if due != place.due:
            place.due = due
            if due < math.inf:
                heappush(self._moments, (due, job.order))

    def _next_moment(self, state: State) -> float | None:
        """When the next job changes its place. Entries that something overtook are dropped on the way."""
        moments = self._moments
        while moments:
            due, (_, _, job_id) = moments[0]
            place = self._places.get(job_id)
            if place and place.due == due and _there(state, job_id):
                return due
            heappop(moments)
        return None

    def _change_queues(self, state: State) -> list[str]:
        """Move every job whose time has come. Those that came down, in the order of their new places."""
        came_down = []
        while (due := self._next_moment(state)) is not None and due <= state.now:
            job_id = heappop(self._moments)[1][2]
            place = self._places[job_id]
            place.due = math.inf
            if job_id in state.line:
                self._promote(state, job_id, place)
                continue
            before = place.queue
            _stand_anew(state, job_id)
            if place.queue != before:
                place.waits, place.fresh = (0, next(self._numbers)), self._plans
                came_down.append(job_id)
                _stand_anew(state, job_id)
        return came_down

    def _promote(self, state: State, job_id: str, place: _Place) -> None:
        job = state.line.get(job_id)
        assert job is not None
        place.forgiven = state.line.remove(job_id)
        place.waits = (0, next(self._numbers))
        state.line.add(job, place.forgiven)

    def _settle(self, state: State, came_down: list[str]) -> None:
        """Who came down and still runs stands before those who wait, from the next plan on."""
        for job_id in came_down:
            place = self._places[job_id]
            place.fresh = 0
            if place.running:
                place.runs = next(self._numbers)
                _stand_anew(state, job_id)

    # -- what others took ---------------------------------------------------------------------

    def _learn(self, state: State) -> None:
        """Notice who ended since the last plan, and judge everybody anew once that is news."""
        if len(self._held) != len(state.running):
            for job_id in sorted(self._held.keys() - state.running.keys()):
                self._gittins.learn(self._held.pop(job_id).gpu_seconds(state.now))
        if self._gittins.refresh():
            state.line.rank_by(self.rank)
            for job_id in state.running:
                _stand_anew(state, job_id)

    def _forget(self, state: State) -> None:
        """Let go of the places of jobs that are gone, now and then."""
        if len(self._places) > 2 * (len(state.running) + len(state.line)) + 1_000:
            for job_id in [each for each in self._places if not _there(state, each)]:
                del self._places[job_id]


def _there(state: State, job_id: str) -> bool:
    return job_id in state.running or job_id in state.line


def _stand_anew(state: State, job_id: str) -> None:
    state.ladder.remove(job_id)
    state.ladder.add(state.running[job_id])
