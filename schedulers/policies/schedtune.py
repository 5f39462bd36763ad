"""SchedTune: packs jobs by their memory bounds and predicted interference onto unlike GPUs."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from gpu_flows.schedulers.model import Job, Progress
from gpu_flows.schedulers.policy import Options, Policy, State
from gpu_flows.schedulers.policy_support.durations import remaining_duration
from gpu_flows.schedulers.policy_support.node_index import NodeIndex
from gpu_flows.schedulers.policy_support.packing import Limits, Packing, Refusal, Reservation

# A plan that goes on for long would hold up everything else, so it ends after that many jobs.
MOST_STARTS = 400  # the next plan follows at once
MOST_PASSED = 2000  # jobs that wait for a repair
AT_ONCE_S = 0.001


class SchedtuneOptions(Options):
    most_slowdown: float = Field(default=2.5, ge=1, title="Most slowdown by sharing")
    """Jobs share a device only if none of them is predicted to take more than this many times as long as
    alone."""

    reserve_mb: int = Field(default=512, ge=0, title="Reserve (MiB)")
    """Memory of a shared device that is not given to any job."""

    order: Literal["arrival", "shortest"] = "arrival"
    """Which waiting job is tried first: the oldest, or the one with the least time left."""

    depth: int = Field(default=100, ge=0)
    """How many jobs behind the first that does not fit are tried."""


class Schedtune(Policy[SchedtuneOptions]):
    """Jobs share a device while their memory bounds fit and none is slowed down too much; fastest GPU first.

    Albahar et al., SchedTune: A Heterogeneity-Aware GPU Scheduler for Deep Learning (CCGrid 2022). A job's
    memory is the upper bound of a prediction, or what its owner states. The job goes to the devices on which
    it ends first: the speed of the GPU model, divided by the slowdown that the jobs already there cause. Of
    equally fast devices the fullest is taken. A job without a memory bound gets whole devices. A job that
    fits nowhere waits; others may pass it, but not on the devices that it will get.

    These are reserved for the first job in order that does not fit: the devices that are expected to have
    room for it first. Until then they take only jobs that are expected to end before it is to start; once
    that time has come they take none. So in the order of arrival every job starts eventually, as long as
    running jobs end; with `order: shortest` a long job may starve. It never preempts. How SchedTune places
    jobs and orders its queue is not published; these rules are ours.
    """

    name = "schedtune"
    shares_devices = True
    needs = ("memory bound",)
    optimizes = "throughput of GPUs of several models, by sharing them without running out of memory"
    promises = ("no starvation",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._index = NodeIndex()
        self._reservation: Reservation | None = None
        self._refused: dict[str, Refusal] = {}  # job id -> why the last plan did not start it

    def rank(self, job: Job, progress: Progress) -> float:
        return remaining_duration(job, progress.work_s) if self.options.order == "shortest" else 0.0

    def group(self, job: Job) -> object:
        return job.least  # bounds differ from job to job: a group for each would make every plan slow

    def why_waiting(self, job: Job) -> str:
        return self._refused[job.id].why if job.id in self._refused else ""

    def plan(self, state: State) -> None:
        packing = Packing(state, Limits(self.options.most_slowdown, self.options.reserve_mb), self._index)
        before, self._refused = self._refused, {}
        reserved: Reservation | None = None
        unplaceable: dict[tuple[object, str], float] = {}  # request and kind -> the shortest that did not fit
        tries, starts, passed = self.options.depth + 1, 0, 0
        for job in state.queue.in_order():
            if packing.takes_repair(job):
                passed += 1
                if passed == MOST_PASSED:
                    break
                continue
            alike, length = (job.request, job.kind), job.expected_s or math.inf
            if alike not in unplaceable or length < unplaceable[alike]:
                devices = packing.find(job, reserved, before.get(job.id))
                if devices:
                    state.draft.start(job, devices)
                    starts += 1
                    if starts == MOST_STARTS:
                        state.draft.wake_at(state.now + AT_ONCE_S)
                        break
                else:
                    unplaceable[alike] = length
                    self._refused[job.id] = packing.refuse(job, reserved)
                    reserved = reserved or self._reserve_for(job, packing)
            tries -= bool(self._refused)
            if not tries:
                break
        self._reservation = reserved

    def _reserve_for(self, job: Job, packing: Packing) -> Reservation | None:
        """Return the reservation of the first job that does not fit. It stays as it is while that is the same
        job, so that others cannot move its start again and again."""
        known = self._reservation
        if known and known.job is job and packing.is_valid(known):
            return known
        return packing.reserve(job)
