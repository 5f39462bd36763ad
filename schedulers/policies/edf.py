"""Earliest deadline first."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.model import Job, Plan, Progress, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.starting import serve, serve_by_rank
from gpu_flows.schedulers.running_order import RunningRank


class EdfOptions(PlacementOptions):
    preemptive: bool = Field(
        default=True,
        title="Preemptive",
        description="Let running jobs with later deadlines yield, where jobs can be preempted.",
    )


class Edf(Policy):
    """The job with the earliest deadline runs; those with later ones yield to it.

    On one device it meets every deadline that any order could meet (Liu and Layland 1973; Dertouzos
    1974). Jobs without a deadline come last, in arrival order, and may starve. Jobs with the same
    deadline, or with none, do not push each other out.
    """

    name = "edf"
    Options = EdfOptions
    options: EdfOptions
    preempts = True
    needs = ("deadline",)
    optimizes = "deadlines met"
    promises = ("work conserving",)

    def rank(self, job: Job, progress: Progress) -> Any:
        return (job.queue_priority, (_deadline(job), "waits"), job.submitted, job.id)

    def running_rank(self, running: Running) -> RunningRank:
        return RunningRank((_deadline(running.job), "runs"))  # sorts before the waiting ones of its deadline

    def plan(self, state: State) -> Plan:
        if self.options.preemptive:
            serve_by_rank(state, self.options)
        else:
            serve(state, self.options)
        return state.draft.plan()


def _deadline(job: Job) -> float:
    return math.inf if job.deadline is None else job.deadline
