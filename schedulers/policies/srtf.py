"""Shortest remaining time first, and shortest remaining service first, which also counts devices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpu_flows.schedulers.model import Job, Progress, Running
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.durations import remaining_duration
from gpu_flows.schedulers.policy_support.elastic import MaybeElasticOptions
from gpu_flows.schedulers.policy_support.resizing import run_elastic
from gpu_flows.schedulers.policy_support.starting import run_by_rank
from gpu_flows.schedulers.running_order import RunningRank


class SrtfOptions(MaybeElasticOptions):
    by: Literal["time", "service"] = Field(default="time", title="Remaining what")
    """Compare remaining time, or remaining service: time multiplied by devices (SRSF)."""


class Srtf(Policy[SrtfOptions]):
    """The job with the least time left runs; longer ones are preempted for it and run later.

    This is optimal for mean turnaround on one device with known durations. Wide or long jobs may
    starve under steady load. With `by: service` a job's devices count as well (SRSF). With `elastic`
    the shortest jobs get the fewest devices they can run on, then one more each, in rounds.
    """

    name = "srtf"
    preempts = True
    needs = ("expected duration",)
    optimizes = "mean turnaround"
    promises = ("work conserving",)

    def rank(self, job: Job, progress: Progress) -> float:
        left = remaining_duration(job, progress.work_s)
        return left * job.gpus if self.options.by == "service" else left

    def running_rank(self, running: Running) -> RunningRank:
        weight = running.job.gpus if self.options.by == "service" else 1
        left = remaining_duration(running.job, running.work(running.rated))
        return RunningRank((left + running.rate * running.rated) * weight, -running.rate * weight)

    def plan(self, state: State) -> None:
        if self.options.elastic:
            run_elastic(state, self.options)
        else:
            run_by_rank(state, self.options)
