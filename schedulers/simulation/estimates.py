"""Estimates of run times for the policy: exact, noisy, stated by the trace or learned."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import defaultdict

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.workload import Arrival


class Estimates(ABC):
    """Estimates the run time of each job once, when it arrives."""

    @abstractmethod
    def estimate(self, arrival: Arrival) -> float | None:
        """Return the expected run time of the job; None if it is unknown."""

    def learn(self, arrival: Arrival) -> None:  # noqa: B027
        """Learn from a job that has ended. By default, do nothing."""

    def job_for_policy(self, arrival: Arrival) -> Job:
        """Return the job with the estimate as its expected run time."""
        expected = self.estimate(arrival)
        return arrival.job if expected == arrival.job.expected_s else arrival.job.expecting(expected)


class Stated(Estimates):
    """The expected run time that the trace states, if any."""

    def estimate(self, arrival: Arrival) -> float | None:
        return arrival.job.expected_s


class Oracle(Estimates):
    """The true duration."""

    def estimate(self, arrival: Arrival) -> float | None:
        return arrival.duration_s


class Noisy(Estimates):
    """The true duration times a random factor: lognormal, with a median of 1."""

    def __init__(self, sigma: float, seed: int = 0) -> None:
        self._sigma, self._random = sigma, random.Random(seed)

    def estimate(self, arrival: Arrival) -> float | None:
        return arrival.duration_s * self._random.lognormvariate(0.0, self._sigma)


class Learned(Estimates):
    """The mean duration of earlier jobs of the same user, kind and size. Without such jobs, the mean of a
    larger group; without any earlier job, unknown."""

    def __init__(self) -> None:
        self._sums: dict[tuple[object, ...], tuple[int, float]] = defaultdict(lambda: (0, 0.0))

    def estimate(self, arrival: Arrival) -> float | None:
        for group in _groups_from_narrow_to_wide(arrival.job):
            count, total = self._sums[group]
            if count:
                return total / count
        return None

    def learn(self, arrival: Arrival) -> None:
        for group in _groups_from_narrow_to_wide(arrival.job):
            count, total = self._sums[group]
            self._sums[group] = (count + 1, total + arrival.duration_s)


def _groups_from_narrow_to_wide(job: Job) -> tuple[tuple[object, ...], ...]:
    return (job.user, job.kind, job.gpus), (job.kind, job.gpus), (job.gpus,), ()


def parse_estimates(spec: str, seed: int = 0) -> Estimates:
    """Parse `oracle`, `stated`, `learned`, or `noisy:SIGMA` such as noisy:0.5."""
    name, _, value = spec.partition(":")
    if name == "noisy":
        try:
            sigma = float(value or 0.5)
        except ValueError:
            sigma = -1.0
        if not 0 <= sigma <= 10:
            raise ValueError(f"Estimates 'noisy:{value}' need a SIGMA between 0 and 10, such as noisy:0.5.")
        return Noisy(sigma, seed)
    known: dict[str, type[Estimates]] = {"oracle": Oracle, "stated": Stated, "learned": Learned}
    if name not in known or value:
        raise ValueError(f"There are no estimates {spec!r}. There are: {', '.join(known)}, noisy:SIGMA.")
    return known[name]()
