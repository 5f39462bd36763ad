"""The declared workload of a benchmark: its jobs, their arrivals, and the policies to compare."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any, Literal

from pydantic import ConfigDict, Field

from gpu_flows.common.forms import Form
from gpu_flows.training import registry


class Workload(Form):
    """A benchmark runs the same jobs, with the same arrivals, under each policy in turn."""

    model_config = ConfigDict(extra="forbid", title="Workload")

    jobs: int = Field(default=10, ge=1, le=10_000)
    """How many jobs to submit."""

    arrival: Literal["at once", "steady", "batches", "poisson"] = "batches"
    """All at once, one every gap, five every gap, or at random with that mean gap."""

    gap_seconds: float = Field(default=10, ge=0, le=86_400, title="Gap (seconds)")
    """Time between arrivals."""

    gpus: list[int] = Field(default=[1, 2, 4, 1], min_length=1)
    """Devices of the jobs, in turn."""

    models: list[str] = Field(default_factory=lambda: [*registry.names()], min_length=1)
    """Models to train, in turn."""

    seconds: list[float] = Field(default=[5.0, 10.0], min_length=1, title="Training time (seconds)")
    """How long each job trains, in turn."""

    policies: list[str] = Field(default=["fifo", "round_robin"], min_length=1)
    """The policies to compare, one after the other. The pool's own policy is restored afterwards."""

    seed: int = Field(default=0, ge=0)
    """The same seed gives the same arrivals."""

    def arrivals(self) -> list[float]:
        """Return when each job arrives, in seconds after the start."""
        if self.arrival == "at once":
            return [0.0] * self.jobs
        if self.arrival == "steady":
            return [number * self.gap_seconds for number in range(self.jobs)]
        if self.arrival == "batches":
            return [number // 5 * self.gap_seconds for number in range(self.jobs)]
        draw = random.Random(self.seed)
        gaps = [draw.expovariate(1 / self.gap_seconds) if self.gap_seconds else 0.0 for _ in range(self.jobs)]
        return [at - gaps[0] for at in accumulate(gaps)]

    def job(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return parameters and job variables of a job, by its number from 0."""
        seconds = self.seconds[number % len(self.seconds)]
        config = {
            "model": self.models[number % len(self.models)],
            "seconds": seconds,
            "epochs": 1_000_000,
            "steps_per_second": 20,
            "seed": number,
        }
        gpus = self.gpus[number % len(self.gpus)]
        return {"config": config}, {"gpus": gpus, "expected_seconds": seconds}
