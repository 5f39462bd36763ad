"""Trains the network of the policy `rl` and writes its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_flows.schedulers.learning.curve import LearningPoint
from gpu_flows.schedulers.learning.weights import Weights


@dataclass(frozen=True)
class Trained:
    """The outcome of a training."""

    weights: Weights  # of the best seed and checkpoint, by the turnaround on workloads kept for the choice
    seed: int
    ratio: float  # its turnaround on those workloads, as a part of the baseline's
    ratio_before: float  # that of the network before training
    curves: dict[int, list[LearningPoint]]  # by seed
    seconds: float


def train(
    *,
    output: Path,
    workloads: Sequence[str] = (),
    traces: Sequence[Path] = (),
    seeds: Sequence[int] = (0,),
    minutes: float | None = None,
    steps: int | None = None,
    processes: int = 2,
    reward: str = "turnaround",
    command: str = "",
    progress: Callable[[int, LearningPoint], None] | None = None,
) -> Trained:
    """Train one network per seed, keep the best, and write it to `output`.

    `workloads` are specs of the generators with a cluster, `SPEC@CLUSTER`; without any, the curriculum.
    `traces` are files whose windows join the curriculum. `minutes` or `steps` limit each seed.
    `progress` is called with the seed and a point of its learning curve after each update.
    """
    raise NotImplementedError
