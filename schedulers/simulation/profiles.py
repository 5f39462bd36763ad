"""Profiles: how fast jobs of a kind run on a number of devices of a model.

A speed is relative to the speed on exactly the devices that the job asks for, of the reference
model, which is 1. Live policies and the simulator use the same profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from gpu_flows.schedulers.model import Job

SCHEDULEARN_SECONDS: dict[str, dict[int, float]] = {
    "keras-mnist": {1: 107, 2: 69, 3: 52.3, 4: 45},
    "tensorflow-mnist": {1: 67, 2: 51, 3: 42, 4: 37},
    "pytorch-mnist": {1: 157, 2: 89, 3: 66, 4: 54},
    "mxnet-mnist": {1: 28.6, 2: 24.3, 3: 22.2, 4: 21.5},
    "pytorch-resnet": {1: 312.9, 2: 250.4, 3: 216.2, 4: 194.6},
}
"""Measured by Schedulearn on GTX 1080 Ti cards: kind -> devices -> seconds that the job takes."""


@dataclass(frozen=True)
class Profile:
    """Throughputs by kind, model and number of devices. An empty kind or model means every other one.
    On a model without an entry, jobs run as on the reference model.

    Throughput is interpolated between the measured numbers of devices. Beyond the largest of them,
    every further device adds as much as the last step did, but at most what the first device adds.
    """

    throughput: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)
    reference: str = ""  # the model to which the durations of traces refer

    def speed(self, job: Job, model: str, gpus: int) -> float:
        if model == self.reference and gpus == job.gpus:
            return 1.0
        here = self._rate(job.kind, model, gpus)
        there = self._rate(job.kind, self.reference, job.gpus)
        return here / there if there else 0.0

    def _rate(self, kind: str, model: str, gpus: int) -> float:
        return _interpolate(self._curve(kind, model), gpus)

    def _curve(self, kind: str, model: str) -> tuple[tuple[int, float], ...]:
        for named in (kind, ""):  # never mix the two for one job: their units may differ
            for key in ((named, model), (named, ""), (named, self.reference)):
                measured = self.throughput.get(key)
                if measured:
                    return tuple(sorted(measured.items()))
        return ((1, 1.0), (2, 2.0))


@cache
def _interpolate(curve: tuple[tuple[int, float], ...], gpus: int) -> float:
    """Return the throughput on `gpus` devices from the measured points of a curve."""
    if gpus <= 0:
        return 0.0
    below = [(0, 0.0)] + [point for point in curve if point[0] <= gpus]
    above = [point for point in curve if point[0] > gpus]
    count, rate = below[-1]
    if count == gpus:
        return rate
    if above:
        next_count, next_rate = above[0]
        return rate + (next_rate - rate) * (gpus - count) / (next_count - count)
    before_count, before_rate = below[-2] if len(below) > 1 else (0, 0.0)
    step = (rate - before_rate) / (count - before_count)
    return rate + max(0.0, min(step, curve[0][1] / curve[0][0])) * (gpus - count)


SCHEDULEARN = Profile(
    {
        (kind, ""): {gpus: 1 / seconds for gpus, seconds in row.items()}
        for kind, row in SCHEDULEARN_SECONDS.items()
    }
)
