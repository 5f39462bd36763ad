"""Estimates of run times for the policy: exact, noisy, stated by the trace or learned."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import JobFeatures
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
    """The median that the duration predictor expects from the jobs that have ended before. Unknown without
    any earlier job."""

    def __init__(self) -> None:
        self._predictor = DurationPredictor()

    def estimate(self, arrival: Arrival) -> float | None:
        found = self._predictor.estimate(_features(arrival.job), "", arrival.job.gpus)
        return found.value if found else None

    def learn(self, arrival: Arrival) -> None:
        self._predictor.learn(_features(arrival.job), "", arrival.job.gpus, arrival.duration_s)


def _features(job: Job) -> JobFeatures:
    """Return what a trace tells of a job. Its kind takes the place of the flow: a trace has no parameters."""
    return JobFeatures(flow=job.kind, user=job.user, gpus=job.gpus)


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
