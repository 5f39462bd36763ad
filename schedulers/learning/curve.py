"""One point of a learning curve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LearningPoint:
    """How far a training was after an update. NaN: not known then."""

    step: int
    """Decisions made so far, by all environments."""
    reward: float
    """Mean return of the latest episodes."""
    turnaround_s: float
    """Mean turnaround of the latest episodes, with decisions drawn at random by the policy."""
    baseline_turnaround_s: float
    """Mean turnaround of the baseline policy on the same episodes."""
    entropy: float
    """Mean entropy of the decisions."""
    value_loss: float
    seconds: float
    """Since the training began."""
