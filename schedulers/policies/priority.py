"""Priority classes, with EASY backfill."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice

from pydantic import Field

from gpu_flows.schedulers.model import Job, Progress, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.backfill import Forecast, Slot
from gpu_flows.schedulers.policy_support.making_room import is_preemptible_after, make_room
from gpu_flows.schedulers.policy_support.starting import run_by_rank, start_in_order
from gpu_flows.schedulers.running_order import RunningRank


class PriorityOptions(PlacementOptions):
    preemptive: bool = True
    """Preempt running jobs of lower priority, where jobs can be preempted."""

    depth: int = Field(default=100, ge=0, title="Backfill depth")
    """How many jobs behind the first that does not fit are tried for the devices it leaves idle."""


class Priority(Policy[PriorityOptions]):
    """The highest priority runs, lower ones are preempted for it; idle devices are backfilled.

    Within a priority the order is that of arrival, and running jobs keep their devices. The first job
    that does not fit gets a reservation for the time at which running jobs will have made room for it;
    jobs behind it start only if they end by then, or on devices that it does not need (EASY backfill,
    Lifka 1995). With equal priorities this is plain EASY. A job whose duration is neither stated nor
    predicted counts as endless. Lower priorities may starve; within the highest one no job does. Shared
    devices are used strictly in order, without backfill, because it is unknown when they become free."""

    name = "priority"
    preempts = True
    running_first = True
    needs = ("priority", "expected duration")
    uses_priority = True
    optimizes = "service for urgent jobs, on well-filled devices"

    def rank(self, job: Job, progress: Progress) -> int:
        return -job.priority

    def running_rank(self, running: Running) -> RunningRank:
        return RunningRank(-running.job.priority)

    def plan(self, state: State) -> None:
        if self.options.sharing == "shared":
            run = run_by_rank if self.options.preemptive else start_in_order
            run(state, self.options, strict=True)
        else:
            while self._start_or_preempt(state):
                pass  # a preempted job may fit elsewhere

    def _start_or_preempt(self, state: State) -> bool:
        """Start jobs in order, then backfill. Return True as soon as a running job was preempted."""
        cluster, queue = state.cluster, state.queue
        may_preempt = self.options.preemptive and state.can_preempt
        if not cluster.idle and not may_preempt:
            return False
        unusable: set[object] = set()  # requests that fit only after a repair
        for job in queue.candidates():
            devices = self.options.place(job, cluster)
            if devices:
                state.draft.start(job, devices)
                continue
            preempting = may_preempt and is_preemptible_after(state, job)
            if preempting and make_room(state, self.options, job):
                return True
            others = (
                other
                for other in queue.in_order(
                    None if preempting else cluster.idle, lambda first: first.request not in unusable
                )
                if other is not job
            )
            behind = list(islice(others, self.options.depth))
            if not behind:
                return False
            forecast = Forecast(state, _would_preempt_for(job, state) if preempting else None)
            if forecast.can_serve(job):
                slot = forecast.reserve(job)
                return self._backfill(state, forecast, behind, slot if preempting else None)
            unusable.add(job.request)  # no other job waits for the repair with it
        return False

    def _backfill(
        self, state: State, forecast: Forecast, behind: Sequence[Job], preempting_for: Slot | None
    ) -> bool:
        """Start the jobs that respect the reservation. Return True as soon as a running job was preempted."""
        unplaceable: set[tuple[object, bool]] = set()
        for job in behind:
            kind = (job.request, forecast.is_brief(job))
            if kind in unplaceable:
                continue
            devices = forecast.room_now(job, self.options)
            if devices:
                state.draft.start(job, devices)
                forecast.started(job)
            elif preempting_for and self._make_room_within(forecast, state, job, preempting_for):
                return True
            else:
                unplaceable.add(kind)
        return False

    def _make_room_within(self, forecast: Forecast, state: State, job: Job, reserved: Slot) -> bool:
        """Start the job in the place of lower ones, unless that breaks the reservation."""
        checkpoint, end = state.draft.checkpoint(), forecast.end_of(job)
        if not make_room(state, self.options, job):
            return False
        if forecast.allows(job, state.running[job.id].devices, end):
            return True
        anew = Forecast(state, _would_preempt_for(reserved.job, state)).reserve(reserved.job)
        if anew.start <= reserved.start < math.inf:
            return True  # other devices serve the reserved job as early
        state.draft.rollback(checkpoint)
        return False


def _would_preempt_for(job: Job, state: State) -> Callable[[Running], bool]:
    """Return a function that decides whether a running job would be preempted for this one."""
    urgency = (job.queue_priority, -job.priority)
    return lambda each: (each.job.queue_priority, -each.job.priority) > urgency and state.may_preempt(each)
