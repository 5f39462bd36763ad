"""What a training tells about itself. No torch here: a flow reads this of processes that have it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training has come, after one step."""

    step: int
    epoch: int  # from 1
    epochs: int
    fraction: float  # of the work or of the time, whichever ends first: 0 to 1
    loss: float  # smoothed over the last steps
    accuracy: float | None  # likewise, 0 to 1; None where there is no right or wrong
    seconds: float
    samples_per_second: float
    peak_memory_mb: float  # over all devices of the job

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f" accuracy {self.accuracy:.0%}"
        return (
            f"epoch {self.epoch:,}/{self.epochs:,} loss {self.loss:.4g}{right}, "
            f"{self.samples_per_second:,.0f} samples/s"
        )


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came out of a training, over all its attempts."""

    model: str
    device: str
    devices: int
    precision: str
    parameters: int
    steps: int
    epochs: int  # begun
    samples: int  # seen, counting repeats
    first_loss: float
    loss: float
    accuracy: float | None
    seconds: float
    samples_per_second: float
    peak_memory_mb: float
    stopped_by: str  # the limit that was met first: epochs, steps or seconds

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Diverged(RuntimeError):
    """The loss is no number any more."""
