"""Shortest job first, without preemption."""

from __future__ import annotations

from gpu_flows.schedulers.model import Job, Progress
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.durations import expected_duration
from gpu_flows.schedulers.policy_support.starting import start_in_order


class Sjf(Policy[PlacementOptions]):
    """The job with the shortest expected duration starts first; running jobs are not preempted.

    Jobs that do not fit are passed over, so a wide long job may starve while short ones keep
    arriving. A job whose duration is neither stated nor predicted counts as endless and
    comes last.
    """

    name = "sjf"
    needs = ("expected duration",)
    optimizes = "mean turnaround without preemption"
    promises = ("work conserving",)

    def rank(self, job: Job, progress: Progress) -> float:
        return expected_duration(job)

    def plan(self, state: State) -> None:
        start_in_order(state, self.options)
