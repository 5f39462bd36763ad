"""Priority classes, with EASY backfill."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heapreplace
from itertools import islice
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.model import Job, Plan, Progress, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.backfill import Forecast, Slot, in_order
from gpu_flows.schedulers.policy_support.starting import make_room, serve, somebody_behind
from gpu_flows.schedulers.running_order import RunningRank
from gpu_flows.schedulers.waiting_queue import Entry


class PriorityOptions(PlacementOptions):
    preemptive: bool = Field(
        default=True,
        title="Preemptive",
        description="Let running jobs of lower priority yield, where jobs can be preempted.",
    )
    depth: int = Field(
        default=100,
        ge=0,
        title="Backfill depth",
        description="How many jobs behind the first that does not fit are tried for what it leaves idle.",
    )


class Priority(Policy):
    """The job of the highest priority runs, lower ones yield; idle devices serve whoever delays nobody.

    Within a priority the order is that of arrival, and who runs stays. The first job that does not
    fit gets a reservation for the moment at which running jobs will have made room for it; jobs
    behind it start only if they end by then, or on devices that it does not need (EASY backfill,
    Lifka 1995). With equal priorities this is plain EASY. A job without an expected duration counts
    as endless. Lower priorities may starve; within the highest one nobody does. Shared devices are
    served strictly in order, without preemption: nobody can tell when they come free.
    """

    name = "priority"
    Options = PriorityOptions
    options: PriorityOptions
    preempts = True
    needs = ("priority", "expected duration")
    optimizes = "service for urgent jobs, on well-filled devices"

    def rank(self, job: Job, progress: Progress) -> Any:
        return (job.queue_priority, (-job.priority, "waits"), job.submitted, job.id)

    def running_rank(self, running: Running) -> RunningRank:
        return RunningRank((-running.job.priority, "runs"))  # sorts before the waiting ones of its class

    def plan(self, state: State) -> Plan:
        if self.options.sharing == "shared":
            serve(state, self.options, strict=True)
        else:
            while self._serve(state):
                pass  # who yielded may fit elsewhere
        return state.draft.plan()

    def _serve(self, state: State) -> bool:
        """Start jobs in order, then backfill. True if a running job had to yield."""
        cluster = state.cluster
        preempting = self.options.preemptive and state.can_preempt
        if not cluster.idle and not preempting:
            return False
        heads = state.queue.heads()
        while heads:
            rank, _, job, group = heads[0]
            devices = self.options.place(job, cluster)
            if devices:
                state.draft.start(job, devices)
                following = group.head()
                if following:
                    heapreplace(heads, (*following, group))
                else:
                    heappop(heads)
                continue
            yielding = preempting and somebody_behind(state, rank)
            if yielding and make_room(state, self.options, rank, job):
                return True
            groups = [head[3] for head in heads if yielding or head[3].gpus <= cluster.idle]
            others = (entry for entry in in_order(groups) if entry[2] is not job)
            behind = list(islice(others, self.options.depth))
            if not behind:
                return False
            forecast = Forecast(state, _yields_to(job, state) if yielding else None)
            if forecast.can_serve(job):
                slot = forecast.promise(job)
                return self._backfill(state, forecast, behind, slot if yielding else None)
            heappop(heads)  # it waits for a repair, and nobody waits for that with it
        return False

    def _backfill(
        self, state: State, forecast: Forecast, behind: Sequence[Entry], yielding_to: Slot | None
    ) -> bool:
        """Start what keeps the promise. True if a running job had to yield."""
        hopeless: set[tuple[object, bool]] = set()
        for rank, _, job in behind:
            like = (job.request, forecast.is_brief(job))
            if like in hopeless:
                continue
            devices = forecast.room_now(job, self.options)
            if devices:
                state.draft.start(job, devices)
                forecast.started(job)
            elif yielding_to and self._make_room_within(forecast, state, rank, job, yielding_to):
                return True
            else:
                hopeless.add(like)
        return False

    def _make_room_within(
        self, forecast: Forecast, state: State, rank: Any, job: Job, promised: Slot
    ) -> bool:
        """Start the job in the place of lower ones, unless that breaks the promise."""
        mark, end = state.draft.mark, forecast.end_of(job)
        if not make_room(state, self.options, rank, job):
            return False
        if forecast.allows(job, state.running[job.id].devices, end):
            return True
        anew = Forecast(state, _yields_to(promised.job, state)).promise(promised.job)
        if anew.start <= promised.start < math.inf:
            return True  # other devices will do as well
        state.draft.undo(mark)
        return False


def _yields_to(job: Job, state: State) -> Callable[[Running], bool]:
    place = (job.queue_priority, -job.priority)
    return lambda each: (each.job.queue_priority, -each.job.priority) > place and state.may_preempt(each)
