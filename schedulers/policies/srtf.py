"""Shortest remaining time first, and its sibling that counts devices too."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gpu_flows.schedulers.model import Job, Plan, Progress, Running
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.elastic import MaybeElasticOptions
from gpu_flows.schedulers.policy_support.resizing import serve_elastic
from gpu_flows.schedulers.policy_support.starting import expected, serve_by_rank
from gpu_flows.schedulers.running_order import RunningRank


class SrtfOptions(MaybeElasticOptions):
    by: Literal["time", "service"] = Field(
        default="time",
        title="Remaining what",
        description="Compare remaining time, or remaining service: time multiplied by devices (SRSF).",
    )


class Srtf(Policy):
    """The job with the least time left runs; longer ones yield to it and come back later.

    Best possible for mean turnaround on one device with known durations. Wide or long jobs may
    starve under steady load. With `by: service` a job's devices count as well (SRSF). With `elastic`
    the shortest get the fewest devices they can run on, then one more each, in rounds.
    """

    name = "srtf"
    Options = SrtfOptions
    options: SrtfOptions
    preempts = True
    needs = ("expected duration",)
    optimizes = "mean turnaround"
    promises = ("work conserving",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.moves_running = self.options.elastic  # growing needs nobody to wait

    def rank(self, job: Job, progress: Progress) -> Any:
        left = expected(job) - progress.work_s
        return (
            job.queue_priority,
            left * job.gpus if self.options.by == "service" else left,
            job.submitted,
            job.id,
        )

    def running_rank(self, running: Running) -> RunningRank:
        weight = running.job.gpus if self.options.by == "service" else 1
        left = expected(running.job) - running.work(running.rated)
        return RunningRank((left + running.rate * running.rated) * weight, -running.rate * weight)

    def plan(self, state: State) -> Plan:
        if self.options.elastic:
            serve_elastic(state, self.options, self.rank)
        else:
            serve_by_rank(state, self.options)
        return state.draft.plan()
