"""Rewards for learning: what passes between two decisions, as parts of what a baseline policy needs in all.

turnaround   the jobs in the system, times seconds: the sum is that of all turnarounds
slowdown     the same, with each job divided by its run time
utilization  the idle devices, times seconds
makespan     the seconds

All are costs, so rewards are negative; an episode as good as the baseline has a sum of -SCALE. Of
`turnaround` the baseline's own is subtracted moment by moment: it does not depend on the decisions, and
without it most of what the rewards tell would be how busy the cluster happens to be. Its sum is 0 if the
episode is as good as the baseline, and else SCALE times the part of the baseline's turnaround that was
saved. Several rewards can be mixed, such as `turnaround:0.7+utilization:0.3`; `mix` stands for that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.simulation.outcome import Simulation
from gpu_flows.schedulers.simulation.summary import summarize

SCALE = 10.0
REWARDS = ("turnaround", "slowdown", "utilization", "makespan")
MIX = "turnaround:0.7+utilization:0.3"


def parse_reward(text: str) -> dict[str, float]:
    """Parse the name of a reward, or a mix such as `turnaround:0.7+makespan:0.3`."""
    parts: dict[str, float] = {}
    for part in (MIX if text == "mix" else text).split("+"):
        name, _, weight = part.strip().partition(":")
        try:
            value = float(weight or 1)
        except ValueError:
            value = math.nan
        if name not in REWARDS or not 0 < value < math.inf:
            known = ", ".join((*REWARDS, "mix"))
            raise ValueError(f"There is no reward {text!r}. There are {known}, or a mix such as {MIX}.")
        parts[name] = value
    return parts


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a baseline policy needs for an episode, in all. None of them is 0."""

    turnaround_s: float  # mean
    turnaround: float
    slowdown: float
    utilization: float
    makespan: float
    presence: Presence

    @classmethod
    def of(cls, simulation: Simulation) -> Baseline:
        summary = summarize(simulation)
        ended = [job for job in simulation.jobs if job.ended is not None]
        devices = sum(len(node.devices) for node in simulation.nodes)
        slowdowns = (job.turnaround_s / max(job.arrival.duration_s, 1e-3) for job in ended)
        idle = devices * summary.makespan_s * (1 - summary.allocation)
        return cls(
            summary.avg_turnaround_s,
            max(1e-3, math.fsum(job.turnaround_s for job in ended)),
            max(1e-3, math.fsum(slowdowns)),
            max(1e-3, idle),
            max(1e-3, summary.makespan_s),
            Presence([job.arrival.job.submitted for job in ended], [job.ended or 0.0 for job in ended]),
        )


class Presence:
    """How long the jobs of a simulation were in the system by a certain time, all together."""

    def __init__(self, arrived: Sequence[float], ended: Sequence[float]) -> None:
        self._arrived, self._ended = sorted(arrived), sorted(ended)
        self._arrived_sums = [0.0, *accumulate(self._arrived)]
        self._ended_sums = [0.0, *accumulate(self._ended)]

    def until(self, now: float) -> float:
        """Return the sum over the jobs of the time from arrival to end, as far as it has passed."""
        here, gone = bisect_right(self._arrived, now), bisect_right(self._ended, now)
        return (here - gone) * now + self._ended_sums[gone] - self._arrived_sums[here]

    @property
    def total(self) -> float:
        return self._ended_sums[-1] - self._arrived_sums[-1]


class RewardMeter:
    """Measures the rewards of an episode as time passes."""

    def __init__(
        self, parts: dict[str, float], baseline: Baseline, durations: dict[str, float], engine: Engine
    ) -> None:
        self._baseline, self._durations, self._engine = baseline, durations, engine
        self._parts = {name: SCALE * weight / sum(parts.values()) for name, weight in parts.items()}
        self._relative = self._parts.get("turnaround", 0.0) / baseline.turnaround
        self._credited = 0.0  # of the baseline's turnaround

    def cost_rate(self) -> float:
        """Return the cost of a second in which nothing changes."""
        rate, baseline, engine = 0.0, self._baseline, self._engine
        for name, weight in self._parts.items():
            if name == "turnaround":
                rate += weight * (len(engine.running) + engine.waiting_count) / baseline.turnaround
            elif name == "slowdown":
                ids = [*engine.running, *(job.id for job in engine.waiting)]
                rate += weight * sum(1 / max(self._durations[id], 1e-3) for id in ids) / baseline.slowdown
            elif name == "utilization":
                rate += weight * engine.cluster.idle / baseline.utilization
            else:
                rate += weight / baseline.makespan
        return rate

    def credit(self, now: float | None) -> float:
        """Return the baseline's part since the last call, up to now or, at the end of the episode, in all."""
        if not self._relative:
            return 0.0
        presence = self._baseline.presence
        before, self._credited = self._credited, presence.total if now is None else presence.until(now)
        return self._relative * (self._credited - before)
