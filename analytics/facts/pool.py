"""Facts about what a pool decided and was told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_flows.analytics.facts.base import Fact, PoolFact, in_table

if TYPE_CHECKING:
    from gpu_flows.schedulers.model import Offer


@in_table("decisions")
class Decided(PoolFact):
    """A policy made a plan that changed something, or that was rejected."""

    policy: str
    waiting: int
    running: int
    started: int
    took_us: float
    error: str = ""
    """Why the plan was rejected."""


@in_table("offers")
class Offered(PoolFact):
    """A policy offered devices to a waiting job, which took them or waits for better placed ones. An offer
    that repeats the job's last one is not recorded."""

    job_id: str
    policy: str
    tier: str
    """The widest part of the network between the devices: node, rack or cluster."""
    accepted: bool
    waited_s: float
    patience_s: float | None
    """How long it declines offers of this tier, from the beginning of its wait; None for ever."""
    slowdown: float
    """That was expected of these devices, against devices of one node."""
    sensitivity: float
    """How much the network has hurt the job, by the policy's own measure."""

    @classmethod
    def of(cls, offer: Offer, job_id: str, pool: str, policy: str, time: float) -> Offered:
        """Return the fact that the policy made this offer."""
        return cls(time, pool, job_id, policy, **offer.figures())


@in_table("swaps")
class Swapped(PoolFact):
    """The scheduler block names another policy, or other options for the same one."""

    from_policy: str
    to_policy: str
    options: str
    """A JSON object."""
    error: str = ""
    """Why the change was refused; the old policy stays in force."""


@in_table("protections")
class ProtectionSet(PoolFact):
    """From now on, jobs are protected like this from being preempted."""

    min_run_seconds: float
    """A job is not preempted before it has run for this long."""
    most_preemptions: int
    """A job that was preempted this often is not preempted again. 0: no limit."""


@in_table("experiments")
class ExperimentRan(Fact):
    """A benchmark or simulation ran. Its jobs carry its name."""

    experiment: str
    time: float
    description: str
    """A JSON object that describes the workload."""
    disturbed: str = ""
    """Why its figures do not count; empty if they do."""
