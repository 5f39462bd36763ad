"""Workloads with random arrivals, sizes and run times."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.simulation.workloads.base import Count, Positive, Workload, job_ids
from gpu_flows.schedulers.workload import Arrival


def _parse_sizes(value: object) -> object:
    """Parse `1:70+4:30`, the form on a command line, to {1: 70, 4: 30}."""
    if not isinstance(value, str):
        return value
    parts = [part.split(":") for part in value.split("+")]
    if any(len(part) != 2 for part in parts):
        raise ValueError("write GPUS:WEIGHT, several joined by +, for example 1:70+4:30")
    return {gpus.strip(): weight.strip() for gpus, weight in parts}


Sizes = Annotated[dict[Count, Positive], BeforeValidator(_parse_sizes), Field(min_length=1)]


class Synthetic(Workload):
    """The sizes and run times of `poisson` and `bursty`; the arrival times differ."""

    jobs: Count = 1000
    """How many jobs."""
    rate_per_hour: Positive = 60
    """Arrivals an hour."""
    sizes: Sizes = {1: 70, 2: 10, 4: 15, 8: 5}
    """How often each number of GPUs is asked for."""
    durations: Literal["lognormal", "exponential", "constant"] = "lognormal"
    """The distribution of run times."""
    mean_s: Positive = 1800
    """Mean run time, in seconds."""
    sigma: Annotated[float, Field(ge=0, le=10)] = 1.5
    """Width of the lognormal: 0 is constant, 1.5 is as uneven as real clusters are."""
    users: Count = 8
    """How many users the jobs belong to."""

    def arrivals(self, random: Random) -> list[Arrival]:
        sizes = random.choices(list(self.sizes), list(self.sizes.values()), k=self.jobs)
        times = self.arrival_times(random)
        return [
            Arrival(
                Job(
                    id,
                    next(times),
                    gpus,
                    user=f"user-{random.randint(1, self.users)}",
                    may_span_nodes=gpus > 1,
                ),
                self._draw_duration(random),
            )
            for id, gpus in zip(job_ids(self.jobs), sizes, strict=True)
        ]

    @abstractmethod
    def arrival_times(self, random: Random) -> Iterator[float]:
        """Yield the arrival times of jobs, without end."""

    def _draw_duration(self, random: Random) -> float:
        if self.durations == "constant":
            return self.mean_s
        if self.durations == "exponential":
            return random.expovariate(1 / self.mean_s)
        return random.lognormvariate(math.log(self.mean_s) - self.sigma**2 / 2, self.sigma)


class Poisson(Synthetic):
    """Jobs arrive at random and independently, at a constant rate."""

    name = "poisson"

    def arrival_times(self, random: Random) -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += random.expovariate(self.rate_per_hour / 3600)


class Bursty(Synthetic):
    """Bursts of jobs with pauses in between, both of random length."""

    name = "bursty"
    rate_per_hour: Positive = 240
    """Arrivals an hour during a burst."""
    burst_s: Positive = 900
    """Mean length of a burst, in seconds."""
    pause_s: Positive = 2700
    """Mean length of a pause, in seconds."""

    def arrival_times(self, random: Random) -> Iterator[float]:
        busy, paused = 0.0, 0.0  # the time spent in bursts and in pauses so far
        burst_end = random.expovariate(1 / self.burst_s)
        while True:
            yield busy + paused
            busy += random.expovariate(self.rate_per_hour / 3600)
            while busy > burst_end:
                paused += random.expovariate(1 / self.pause_s)
                burst_end += random.expovariate(1 / self.burst_s)
