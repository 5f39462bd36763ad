"""Earliest deadline first."""

from __future__ import annotations

import math

from gpu_flows.schedulers.model import Job, Progress, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.starting import run_by_rank, start_in_order
from gpu_flows.schedulers.running_order import RunningRank


class EdfOptions(PlacementOptions):
    preemptive: bool = True
    """Preempt running jobs with later deadlines, where jobs can be preempted."""


class Edf(Policy[EdfOptions]):
    """The job with the earliest deadline runs; jobs with later ones are preempted for it.

    On one device it meets every deadline that any order could meet (Liu and Layland 1973; Dertouzos
    1974). Jobs without a deadline come last, in arrival order, and may starve. Jobs with the same
    deadline, or with none, do not preempt each other.
    """

    name = "edf"
    preempts = True
    running_first = True
    needs = ("deadline",)
    optimizes = "deadlines met"
    promises = ("work conserving",)

    def rank(self, job: Job, progress: Progress) -> float:
        return math.inf if job.deadline is None else job.deadline

    def running_rank(self, running: Running) -> RunningRank:
        return RunningRank(self.rank(running.job, running.before))

    def plan(self, state: State) -> None:
        if self.options.preemptive:
            run_by_rank(state, self.options)
        else:
            start_in_order(state, self.options)
