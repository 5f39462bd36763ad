"""How long a policy is told that a job will take: the truth, a guess, or what earlier jobs teach."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import defaultdict

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.workload import Arrival


class Estimates(ABC):
    """Asked once for each job, when it arrives."""

    @abstractmethod
    def expect(self, arrival: Arrival) -> float | None:
        """How long the job is said to take; None if nobody knows."""

    def learn(self, arrival: Arrival) -> None:  # noqa: B027
        """The job has ended; its true duration may be looked at. Most have nothing to learn."""

    def known(self, arrival: Arrival) -> Job:
        """The job as the policy gets to see it."""
        expected = self.expect(arrival)
        return arrival.job if expected == arrival.job.expected_s else arrival.job.expecting(expected)


class Stated(Estimates):
    """What the trace itself says, if anything."""

    def expect(self, arrival: Arrival) -> float | None:
        return arrival.job.expected_s


class Oracle(Estimates):
    """The true duration."""

    def expect(self, arrival: Arrival) -> float | None:
        return arrival.duration_s


class Noisy(Estimates):
    """The true duration, off by a random factor: lognormal, with a median of 1."""

    def __init__(self, sigma: float, seed: int = 0) -> None:
        self._sigma, self._random = sigma, random.Random(seed)

    def expect(self, arrival: Arrival) -> float | None:
        return arrival.duration_s * self._random.lognormvariate(0.0, self._sigma)


class Learned(Estimates):
    """The mean of what earlier jobs of the same user, kind and size took; of a wider circle while
    there is none; nothing at all at the very beginning."""

    def __init__(self) -> None:
        self._sums: dict[tuple[object, ...], tuple[int, float]] = defaultdict(lambda: (0, 0.0))

    def expect(self, arrival: Arrival) -> float | None:
        for circle in _circles(arrival.job):
            count, total = self._sums[circle]
            if count:
                return total / count
        return None

    def learn(self, arrival: Arrival) -> None:
        for circle in _circles(arrival.job):
            count, total = self._sums[circle]
            self._sums[circle] = (count + 1, total + arrival.duration_s)


def _circles(job: Job) -> tuple[tuple[object, ...], ...]:
    return (job.user, job.kind, job.gpus), (job.kind, job.gpus), (job.gpus,), ()


def estimates(spec: str, seed: int = 0) -> Estimates:
    """`oracle`, `stated`, `learned`, or `noisy:SIGMA` such as noisy:0.5."""
    name, _, value = spec.partition(":")
    if name == "noisy":
        try:
            sigma = float(value or 0.5)
        except ValueError:
            sigma = -1.0
        if not 0 <= sigma <= 10:
            raise ValueError(f"Estimates 'noisy:{value}' need a spread between 0 and 10, such as noisy:0.5.")
        return Noisy(sigma, seed)
    known: dict[str, type[Estimates]] = {"oracle": Oracle, "stated": Stated, "learned": Learned}
    if name not in known or value:
        raise ValueError(f"There are no estimates {spec!r}. There are: {', '.join(known)}, noisy:SIGMA.")
    return known[name]()
