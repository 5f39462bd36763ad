"""What a predictor answers, and what it is asked about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted quantity: MiB per device, or seconds on the devices."""

    value: float
    upper: float  # at most one job in fifty needs more memory, and one in ten more time
    how: str  # stated, traced, features, history, progress or raised
    detail: str = ""  # for people: what it was made from

    def __post_init__(self) -> None:
        if not 0 <= self.value <= self.upper:
            raise ValueError(
                f"An estimate needs 0 <= value <= upper, not value {self.value:g} and upper {self.upper:g}."
            )


@dataclass(frozen=True, slots=True)
class JobFeatures:
    """What is known of a job before it runs, beyond its size."""

    flow: str = ""
    deployment: str = ""
    user: str = ""
    gpus: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of its run
