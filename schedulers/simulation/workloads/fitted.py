"""A workload that resembles a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, median

from gpu_flows.schedulers.simulation.workloads.base import Count, Positive, Workload, job_ids
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival


class Fitted(Workload):
    """More jobs like those of a trace: its sizes, users, run times and bursts, drawn again.

    Each job is a random job of the trace, with a run time from the lognormal that fits the jobs of
    its size. The gaps between arrivals are sequences of gaps of the trace, so that bursts remain.
    """

    name = "fitted"
    trace: Path
    """The trace, in any known format."""
    format: str | None = None
    """The format of the trace, if it is not recognized."""
    jobs: Count = 1000
    """How many jobs."""
    load: Positive = 1
    """How much faster than in the trace they arrive."""
    stretch: Count = 20
    """How many gaps in a row are taken from the trace at a time."""

    def arrivals(self, random: Random) -> list[Arrival]:
        observed = load(self.trace, self.format).arrivals
        durations = _fit_durations(observed)
        times = accumulate(self._draw_gaps(observed, random), initial=0.0)
        drawn = []
        for id, like in zip(job_ids(self.jobs), random.choices(observed, k=self.jobs), strict=True):
            job = replace(like.job, id=id, submitted=next(times), deadline=None, expected_s=None)
            drawn.append(replace(like, job=job, duration_s=durations[job.gpus].draw(random)))
        return drawn

    def _draw_gaps(self, observed: list[Arrival], random: Random) -> Iterator[float]:
        times = [arrival.job.submitted for arrival in observed]
        gaps = [(after - before) / self.load for before, after in pairwise(times)] or [0.0]
        while True:
            start = random.randrange(len(gaps))
            yield from gaps[start : start + self.stretch]


@dataclass(frozen=True, slots=True)
class Durations:
    """A lognormal with the median and the mean of some run times, up to the longest of them.

    The mean is more important than the shape, because it determines the load. The usual fit, to the
    logarithms, misses the mean of real traces by a large factor.
    """

    median: float
    mean: float
    longest: float

    def draw(self, random: Random) -> float:
        variance = max(0.0, 2 * math.log(self.mean / self.median))
        drawn = random.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return min(self.longest, drawn)


def _fit_durations(observed: Iterable[Arrival]) -> dict[int, Durations]:
    """Fit the run times of each size. A run time below a second counts as a second."""
    by_size: dict[int, list[float]] = {}
    for arrival in observed:
        by_size.setdefault(arrival.job.gpus, []).append(max(1.0, arrival.duration_s))
    return {gpus: Durations(median(some), fmean(some), max(some)) for gpus, some in by_size.items()}
