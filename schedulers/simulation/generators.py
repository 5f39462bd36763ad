"""Workloads out of thin air: seeded, so that the same spec and seed always give the same jobs.

A workload is a pydantic model. Its fields are its options, its docstring says in a line what it
is, and `poisson:jobs=1000,rate_per_hour=60` is how it is written on a command line.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gpu_flows.common.validation import explain
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.simulation.profiles import SCHEDULEARN_SECONDS
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival


class WorkloadError(ValueError):
    """No such workload, or an option it does not take; the message says which there are."""


class Workload(BaseModel, ABC):
    """A kind of workload; an instance of it is one that is chosen, ready to be drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: ClassVar[str]

    @abstractmethod
    def arrivals(self, random: Random) -> list[Arrival]:
        """The jobs in arrival order, the first at second 0."""

    @classmethod
    def about(cls) -> str:
        return (cls.__doc__ or "").strip().split("\n")[0]


def _sizes(value: object) -> object:
    """`1:70+4:30`, as one writes it, is {1: 70, 4: 30}."""
    if not isinstance(value, str):
        return value
    parts = [part.split(":") for part in value.split("+")]
    if any(len(part) != 2 for part in parts):
        raise ValueError("write GPUS:WEIGHT, several joined by +, for example 1:70+4:30")
    return {gpus.strip(): weight.strip() for gpus, weight in parts}


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


# -- jobs of any size and length, at random ------------------------------------------------------


class Drawn(Workload):
    """What `poisson` and `bursty` have in common: how large and how long jobs are."""

    jobs: Count = Field(default=1000, description="How many jobs.")
    rate_per_hour: Positive = Field(default=60, description="Arrivals an hour, while there are any.")
    sizes: Annotated[dict[Count, Positive], BeforeValidator(_sizes), Field(min_length=1)] = Field(
        default={1: 70, 2: 10, 4: 15, 8: 5}, description="How often each number of GPUs is asked for."
    )
    durations: Literal["lognormal", "exponential", "constant"] = Field(
        default="lognormal", description="How run times are distributed."
    )
    mean_s: Positive = Field(default=1800, description="Mean run time, in seconds.")
    sigma: Annotated[float, Field(ge=0, le=10)] = Field(
        default=1.5, description="Width of the lognormal: 0 is constant, 1.5 is as uneven as clusters are."
    )
    users: Count = Field(default=8, description="How many users the jobs belong to.")

    def arrivals(self, random: Random) -> list[Arrival]:
        sizes = random.choices(list(self.sizes), list(self.sizes.values()), k=self.jobs)
        times = self.times(random)
        return [
            Arrival(
                Job(
                    id,
                    next(times),
                    gpus,
                    user=f"user-{random.randint(1, self.users)}",
                    may_span_nodes=gpus > 1,
                ),
                self._duration(random),
            )
            for id, gpus in zip(_ids(self.jobs), sizes, strict=True)
        ]

    @abstractmethod
    def times(self, random: Random) -> Iterator[float]:
        """When jobs arrive, without end."""

    def _duration(self, random: Random) -> float:
        if self.durations == "constant":
            return self.mean_s
        if self.durations == "exponential":
            return random.expovariate(1 / self.mean_s)
        return random.lognormvariate(math.log(self.mean_s) - self.sigma**2 / 2, self.sigma)


class Poisson(Drawn):
    """Jobs arrive at random at a steady rate, each on its own."""

    name = "poisson"

    def times(self, random: Random) -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += random.expovariate(self.rate_per_hour / 3600)


class Bursty(Drawn):
    """Bursts of jobs with pauses in between, both of random length."""

    name = "bursty"
    rate_per_hour: Positive = Field(default=240, description="Arrivals an hour during a burst.")
    burst_s: Positive = Field(default=900, description="Mean length of a burst, in seconds.")
    pause_s: Positive = Field(default=2700, description="Mean length of a pause, in seconds.")

    def times(self, random: Random) -> Iterator[float]:
        busy, paused = 0.0, 0.0  # a steady stream, into which the pauses are cut
        burst_end = random.expovariate(1 / self.burst_s)
        while True:
            yield busy + paused
            busy += random.expovariate(self.rate_per_hour / 3600)
            while busy > burst_end:
                paused += random.expovariate(1 / self.pause_s)
                burst_end += random.expovariate(1 / self.burst_s)


# -- the experiments of others -------------------------------------------------------------------

MIXED = "mixed"


def _measured(kind: str) -> str:
    if kind not in (MIXED, *SCHEDULEARN_SECONDS):
        raise ValueError(f"there are {', '.join((MIXED, *SCHEDULEARN_SECONDS))}")
    return kind


class Schedulearn(Workload):
    """Schedulearn's experiment: 5, 10, 15 or 20 training jobs every ten seconds, with measured times.

    Its section 5.4 submits that many jobs "every ten seconds" and plots results by their number, so
    a strategy is a batch; how many batches there were, and on how many GPUs each job ran, is not
    said. Its three ResNet jobs: kind=pytorch-resnet,jobs=1,batches=3,every_s=120.
    """

    name = "schedulearn"
    jobs: Count = Field(default=5, description="Jobs in a batch: 5, 10, 15 or 20 in the experiment.")
    batches: Count = Field(default=1, description="How many batches.")
    every_s: Positive = Field(default=10, description="Seconds from one batch to the next.")
    kind: Annotated[str, AfterValidator(_measured)] = Field(
        default=MIXED, description="The one kind of job, or `mixed`: each is drawn."
    )
    gpus: Annotated[int, Field(ge=0, le=4)] = Field(
        default=0, description="GPUs of every job, 1 to 4, or 0: each is drawn."
    )
    elastic: bool = Field(default=False, description="Whether jobs may run on any number from 1 to 4.")
    gpu_memory_gb: Annotated[float, Field(ge=0)] = Field(
        default=0, description="Memory of every job on each device; above 0, devices can be shared."
    )

    def arrivals(self, random: Random) -> list[Arrival]:
        return [self._job(random, number, id) for number, id in enumerate(_ids(self.jobs * self.batches))]

    def _job(self, random: Random, number: int, id: str) -> Arrival:
        kind = random.choice(list(SCHEDULEARN_SECONDS)) if self.kind == MIXED else self.kind
        seconds = SCHEDULEARN_SECONDS[kind]
        gpus = self.gpus or random.choice(list(seconds))
        job = Job(
            id,
            number // self.jobs * self.every_s,
            gpus,
            math.ceil(1024 * self.gpu_memory_gb),
            kind=kind,
            min_gpus=min(seconds) if self.elastic else 0,
            max_gpus=max(seconds) if self.elastic else 0,
        )
        return Arrival(job, seconds[gpus])


AMS560_JOBS = {  # kind -> seconds, utilization in percent, memory in percent of the device
    "cnn": (80.83, 70.0, 60.0),
    "lstm": (34.18, 60.0, 50.0),
    "matrix-multiplication": (7.24, 40.0, 50.0),
    "xgboost": (2.77, 30.0, 40.0),
}
"""The four jobs of the AMS 560 project (github.com/gabbyvaillant/scheduling-algo) as it measured them."""


class Ams560(Workload):
    """Four kinds of learning jobs, as measured by the AMS 560 project, more than few GPUs can take."""

    name = "ams560"
    jobs: Count = Field(default=40, description="How many jobs, the four kinds in turn, shuffled.")
    devices: Count = Field(default=1, description="How many GPUs the load is meant for.")
    load: Positive = Field(default=2, description="Work that arrives, over what those GPUs can do alone.")
    spread: Annotated[float, Field(ge=0, le=2)] = Field(
        default=0.2, description="How much run times of a kind differ (sigma of a lognormal)."
    )
    device_memory_gb: Positive = Field(
        default=16, description="Memory of a device, of which jobs take their measured part."
    )

    def arrivals(self, random: Random) -> list[Arrival]:
        kinds = [list(AMS560_JOBS)[number % len(AMS560_JOBS)] for number in range(self.jobs)]
        random.shuffle(kinds)
        work = fmean(seconds for seconds, _, _ in AMS560_JOBS.values())
        now, arrivals = 0.0, []
        for id, kind in zip(_ids(self.jobs), kinds, strict=True):
            seconds, utilization, memory = AMS560_JOBS[kind]
            job = Job(id, now, memory_mb=round(1024 * self.device_memory_gb * memory / 100), kind=kind)
            duration = seconds * random.lognormvariate(-(self.spread**2) / 2, self.spread)
            arrivals.append(Arrival(job, duration, utilization))
            now += random.expovariate(self.devices * self.load / work)
        return arrivals


# -- more of what there was ----------------------------------------------------------------------


class Fitted(Workload):
    """More jobs like those of a trace: its sizes, users, run times and bursts, drawn anew.

    A job is one of the trace's, picked at random, with a run time from the lognormal that fits the
    jobs of its size. Gaps between arrivals are taken from the trace in stretches, so that what
    came in bursts does so again.
    """

    name = "fitted"
    trace: Path = Field(description="The trace, in any known format.")
    format: str | None = Field(default=None, description="Its format, if it is not recognized.")
    jobs: Count = Field(default=1000, description="How many jobs.")
    load: Positive = Field(default=1, description="How much faster than in the trace they arrive.")
    stretch: Count = Field(default=20, description="How many gaps in a row are taken at a time.")

    def arrivals(self, random: Random) -> list[Arrival]:
        observed = load(self.trace, self.format).arrivals
        durations = _fit(observed)
        times = accumulate(self._gaps(observed, random), initial=0.0)
        drawn = []
        for id, like in zip(_ids(self.jobs), random.choices(observed, k=self.jobs), strict=True):
            job = replace(like.job, id=id, submitted=next(times), deadline=None, expected_s=None)
            drawn.append(replace(like, job=job, duration_s=durations[job.gpus].draw(random)))
        return drawn

    def _gaps(self, observed: list[Arrival], random: Random) -> Iterator[float]:
        times = [arrival.job.submitted for arrival in observed]
        gaps = [(after - before) / self.load for before, after in pairwise(times)] or [0.0]
        while True:
            start = random.randrange(len(gaps))
            yield from gaps[start : start + self.stretch]


@dataclass(frozen=True, slots=True)
class Durations:
    """A lognormal with the median and the mean of some run times, up to the longest of them.

    The mean matters more than the shape: it is the load. The usual fit, to the logarithms, misses
    it many times over on real traces.
    """

    median: float
    mean: float
    longest: float

    def draw(self, random: Random) -> float:
        variance = max(0.0, 2 * math.log(self.mean / self.median))
        drawn = random.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return min(self.longest, drawn)


def _fit(observed: Iterable[Arrival]) -> dict[int, Durations]:
    """The run times of each size. What took less than a second counts as one."""
    by_size: dict[int, list[float]] = {}
    for arrival in observed:
        by_size.setdefault(arrival.job.gpus, []).append(max(1.0, arrival.duration_s))
    return {gpus: Durations(median(some), fmean(some), max(some)) for gpus, some in by_size.items()}


# -- by name -------------------------------------------------------------------------------------

WORKLOADS: dict[str, type[Workload]] = {
    workload.name: workload for workload in (Ams560, Bursty, Fitted, Poisson, Schedulearn)
}


def generate(spec: str, seed: int = 0) -> list[Arrival]:
    """The jobs of a spec such as `poisson:jobs=1000,rate_per_hour=60`, the same for the same seed."""
    return parse(spec).arrivals(Random(seed))


def parse(spec: str) -> Workload:
    """The workload a spec names, or a WorkloadError that tells what is wrong with it."""
    name, _, written = (part.strip() for part in spec.partition(":"))
    if name not in WORKLOADS:
        raise WorkloadError(f"There is no workload {name!r}. There are: {', '.join(WORKLOADS)}.")
    options: dict[str, str] = {}
    for pair in filter(None, written.split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or key in options:
            wrong = "is given twice" if equals else "is not KEY=VALUE"
            raise WorkloadError(f"Workload {spec!r}: {pair.strip()!r} {wrong}. Write {name}:KEY=VALUE,...")
        options[key] = value
    try:
        return WORKLOADS[name].model_validate(options)
    except ValidationError as error:
        known = ", ".join(WORKLOADS[name].model_fields)
        raise WorkloadError(
            f"Workload {name!r} cannot be made ({explain(error, depth=1)}). Its options: {known}."
        ) from None


def _ids(count: int) -> list[str]:
    """Ids whose alphabetical order, which decides between equals, is that of the numbers."""
    width = len(str(count))
    return [f"job-{number:0{width}d}" for number in range(1, count + 1)]
