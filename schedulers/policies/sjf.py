"""Shortest job first, without preemption."""

from __future__ import annotations

from typing import Any

from gpu_flows.schedulers.model import Job, Plan, Progress
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.starting import expected, serve


class Sjf(Policy):
    """The job with the shortest expected duration starts first; what runs is left alone.

    Jobs that do not fit are passed over, so a wide long job may starve while short ones keep
    coming. A job that states no duration counts as endless and comes after those that do.
    """

    name = "sjf"
    Options = PlacementOptions
    options: PlacementOptions
    needs = ("expected duration",)
    optimizes = "mean turnaround, as far as that goes without preemption"
    promises = ("work conserving",)

    def rank(self, job: Job, progress: Progress) -> Any:
        return (job.queue_priority, expected(job), job.submitted, job.id)

    def plan(self, state: State) -> Plan:
        serve(state, self.options)
        return state.draft.plan()
