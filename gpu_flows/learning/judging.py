"""Judges weights as the pool would use them: as policy `rl`, without chance, on whole workloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gpu_flows.learning.curriculum import Curriculum
from gpu_flows.schedulers.learning.weights import Weights, save
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.episode import Episode
from gpu_flows.schedulers.simulation.summary import summarize

BASELINE = "tiresias"
EPISODES = 16
CHOICE_SEED = 9_000_000  # of the workloads by which weights are chosen; no environment is trained with it
EVALUATION_SEED = 8_000_000  # of those by which they are evaluated
FULL_LENGTH = 1_000  # episodes after which those of a curriculum are as long as they get

PolicyChoice = tuple[str, Mapping[str, Any]]  # name and options


class Judge:
    """Holds the workloads by which weights are chosen, and what the baseline policy makes of them."""

    def __init__(self, curriculum: Curriculum) -> None:
        self._episodes = list(draw_episodes(curriculum, EPISODES, CHOICE_SEED))
        self._baseline = [_turnaround(each, (BASELINE, {})) for each in self._episodes]

    def ratio(self, weights: Weights, file: Path) -> float:
        """Return the turnaround with these weights as a part of the baseline's: the geometric mean over the
        workloads. A file beside this one is used in between."""
        scratch = file.with_suffix(".judged.npz")
        save(weights, scratch)
        found = [_turnaround(each, ("rl", {"weights": str(scratch)})) for each in self._episodes]
        scratch.unlink()
        return mean_ratio(found, self._baseline)


def draw_episodes(curriculum: Curriculum, count: int, seed: int) -> Iterator[Episode]:
    """Draw episodes of full length."""
    curriculum.drawn, random = FULL_LENGTH, Random(seed)
    return (curriculum(random) for _ in range(count))


@dataclass(frozen=True)
class Evaluation:
    """What the policies make of one workload."""

    workload: str
    jobs: int
    devices: int
    turnaround_s: dict[str, float]  # by policy
    makespan_s: dict[str, float]
    utilization: dict[str, float]


def evaluate(
    episodes: Sequence[Episode],
    policies: Mapping[str, PolicyChoice],
    progress: Callable[[], None] | None = None,
) -> list[Evaluation]:
    """Simulate each episode under each policy."""
    found = []
    for episode in episodes:
        summaries = {
            label: summarize(episode.simulate(make_policy(name, options)))
            for label, (name, options) in policies.items()
        }
        found.append(
            Evaluation(
                episode.name,
                len(episode.arrivals),
                sum(len(node.devices) for node in episode.nodes),
                {label: each.avg_turnaround_s for label, each in summaries.items()},
                {label: each.makespan_s for label, each in summaries.items()},
                {label: each.utilization for label, each in summaries.items()},
            )
        )
        if progress:
            progress()
    return found


def mean_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the geometric mean of our figures as parts of theirs."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    return math.exp(math.fsum(logs) / len(logs))


def _turnaround(episode: Episode, policy: PolicyChoice) -> float:
    return summarize(episode.simulate(make_policy(*policy))).avg_turnaround_s
