"""Judges a network as the pool would use it: as policy `rl`, without chance, on whole workloads."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

from gpu_flows.learning.curriculum import Curriculum
from gpu_flows.schedulers.learning.weights import Weights, save
from gpu_flows.schedulers.policy import Policy, make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.environment import Episode
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.summary import summarize

EPISODES = 16
SEED = 9_000_000  # of the workloads; no environment is trained with it


class Judge:
    """Holds the workloads and what the baseline policy makes of them."""

    def __init__(self, curriculum: Curriculum, baseline: str = "tiresias") -> None:
        random = Random(SEED)
        self._episodes = [curriculum(random) for _ in range(EPISODES)]
        self._baseline = [mean_turnaround(each, make_policy(baseline)) for each in self._episodes]

    def ratio(self, weights: Weights, file: Path) -> float:
        """Return the turnaround with these weights as a part of the baseline's: the geometric mean over the
        workloads. The file is used in between."""
        scratch = file.with_suffix(".judged.npz")
        save(weights, scratch)
        logs = [
            math.log(mean_turnaround(each, make_policy("rl", {"weights": str(scratch)})) / baseline)
            for each, baseline in zip(self._episodes, self._baseline, strict=True)
        ]
        scratch.unlink()
        return math.exp(math.fsum(logs) / len(logs))


def mean_turnaround(episode: Episode, policy: Policy) -> float:
    """Simulate the episode under the policy and return the mean turnaround."""
    found = simulate(episode.arrivals, episode.nodes, policy, Conditions(restart_s=episode.restart_s))
    if found.policy_error:
        raise RuntimeError(f"Policy {policy.name!r} failed: {found.policy_error}")
    return summarize(found).avg_turnaround_s
