"""What a training reports: its progress and its result.

This module does not import torch, because the flow reads the reports of other processes without it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a training after one step."""

    step: int
    epoch: int  # from 1
    epochs: int
    fraction: float  # 0 to 1: of the steps or of the time, whichever is further
    loss: float  # smoothed over the last steps
    accuracy: float | None  # smoothed, 0 to 1; None for a model that does not classify
    seconds: float
    samples_per_second: float
    peak_memory_mb: float  # over all devices of the job

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f" accuracy {self.accuracy:.0%}"
        return (
            f"epoch {self.epoch:,}/{self.epochs:,} loss {self.loss:.4g}{accuracy}, "
            f"{self.samples_per_second:,.0f} samples/s"
        )


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a training, over all its attempts."""

    model: str
    device: str
    devices: int
    precision: str
    parameters: int
    steps: int
    epochs: int  # started
    samples: int  # seen, counting repeats
    first_loss: float
    loss: float
    accuracy: float | None
    seconds: float
    samples_per_second: float
    peak_memory_mb: float
    stopped_by: str  # the limit that was reached first: epochs, steps or seconds

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Diverged(RuntimeError):
    """The loss is infinite or not a number."""
