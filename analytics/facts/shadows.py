"""Facts about policies that did not decide, but planned beside the one that did, or would have had to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_flows.analytics.facts.base import PoolFact, in_table

if TYPE_CHECKING:
    from gpu_flows.schedulers.forecast.projection import Projection
    from gpu_flows.schedulers.forecast.shadows import Verdict


@in_table("shadow_decisions")
class ShadowDecided(PoolFact):
    """A shadow planned on the same state as the policy, and at least one of them moved something."""

    policy: str
    """That decided."""
    shadow: str
    same_jobs: bool
    """It would have started the same jobs."""
    same_devices: bool
    """And these on the same devices."""
    started: int
    preempted: int
    agreement: float
    """The moves that both made, as a part of the moves that one of them made: 0 to 1."""
    took_us: float
    skipped: int
    """Decisions before this one about which it was not asked, for lack of time."""
    error: str = ""
    """Why it has been suspended; its plan does not count."""

    @classmethod
    def of(cls, verdict: Verdict, time: float, pool: str, policy: str) -> ShadowDecided:
        """Return the fact that this shadow would have done so."""
        return cls(
            time,
            pool,
            policy,
            verdict.shadow,
            verdict.same_jobs,
            verdict.same_devices,
            verdict.started,
            verdict.preempted,
            verdict.agreement,
            verdict.took_us,
            verdict.skipped,
            verdict.error,
        )


@in_table("shadow_projections")
class ShadowProjected(PoolFact):
    """The known jobs of a pool were simulated to their ends, with the durations that are expected of them."""

    policy: str
    """In force."""
    shadow: str
    """That was simulated; the policy in force itself is one of them."""
    jobs: int
    turnaround_s: float
    """The mean of these jobs."""
    makespan_s: float
    """From the first submission to the last end."""

    @classmethod
    def of(cls, projection: Projection, time: float, pool: str, policy: str) -> ShadowProjected:
        """Return the fact that this was projected."""
        known = projection.jobs, projection.turnaround_s, projection.makespan_s
        return cls(time, pool, policy, projection.policy, *known)


@in_table("regrets")
class Regretted(PoolFact):
    """The recorded jobs of a period were replayed under several policies."""

    since: float
    until: float
    policy: str
    """The one that the pool has."""
    best: str
    """The one with the shortest mean turnaround."""
    regret_percent: float
    """How much longer the mean turnaround is under the pool's policy than under the best one."""
    jobs: int
