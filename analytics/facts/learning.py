"""Facts about the training of learned policies."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from typing import TYPE_CHECKING, Any

from gpu_flows.analytics.facts.base import Fact, in_table

if TYPE_CHECKING:
    from gpu_flows.schedulers.learning.curve import LearningPoint


@in_table("learning_points")
class LearningStep(Fact):
    """How good a policy was after so many steps of its training."""

    training: str
    """The name of the training."""
    seed: int
    step: int
    time: float
    reward: float | None
    """Of an episode, the mean of the latest 32."""
    turnaround_s: float | None
    """The mean turnaround of the jobs of these episodes."""
    baseline_turnaround_s: float | None
    """That of the same jobs under the policy that it is compared with."""
    entropy: float | None
    """How undecided the policy is."""
    value_loss: float | None
    seconds: float
    """How long the training has taken so far."""

    @classmethod
    def of(cls, point: LearningPoint, training: str, seed: int, time: float) -> LearningStep:
        """Return the fact of a point of a learning curve. What is not known there (NaN) is None."""
        known: dict[str, Any] = asdict(point)
        known.update({name: None for name, value in known.items() if isnan(value)})
        return cls(training=training, seed=seed, time=time, **known)
