"""The workloads of published experiments, with run times that their authors measured."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean
from typing import Annotated

from pydantic import AfterValidator, Field

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.simulation.profiles import SCHEDULEARN_SECONDS
from gpu_flows.schedulers.simulation.workloads.base import Count, Positive, Workload, job_ids
from gpu_flows.schedulers.workload import Arrival

MIXED = "mixed"


def _check_kind(kind: str) -> str:
    if kind not in (MIXED, *SCHEDULEARN_SECONDS):
        raise ValueError(f"there are {', '.join((MIXED, *SCHEDULEARN_SECONDS))}")
    return kind


class Schedulearn(Workload):
    """Schedulearn's experiment: 5, 10, 15 or 20 training jobs every ten seconds, with measured times.

    Its section 5.4 submits that many jobs "every ten seconds" and plots results by their number, so
    this workload submits them in batches. The paper does not state how many batches there were, nor
    on how many GPUs each job ran. Its experiment with three ResNet jobs is
    kind=pytorch-resnet,jobs=1,batches=3,every_s=120.
    """

    name = "schedulearn"
    jobs: Count = 5
    """Jobs in a batch: 5, 10, 15 or 20 in the experiment."""
    batches: Count = 1
    """How many batches."""
    every_s: Positive = 10
    """Seconds from one batch to the next."""
    kind: Annotated[str, AfterValidator(_check_kind)] = MIXED
    """The kind of all jobs, or `mixed` to draw it for each job."""
    gpus: Annotated[int, Field(ge=0, le=4)] = 0
    """GPUs of every job, 1 to 4, or 0 to draw the number for each job."""
    elastic: bool = False
    """Whether jobs may run on any number of GPUs from 1 to 4."""
    gpu_memory_gb: Annotated[float, Field(ge=0)] = 0
    """Memory of every job on each device. Above 0, jobs can share devices."""

    def arrivals(self, random: Random) -> list[Arrival]:
        ids = job_ids(self.jobs * self.batches)
        return [self._draw_job(random, number, id) for number, id in enumerate(ids)]

    def _draw_job(self, random: Random, number: int, id: str) -> Arrival:
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
AMS560_WIDTHS = {"cnn": 4, "lstm": 2}  # GPUs with the option `wide`; the others have one


class Ams560(Workload):
    """Four kinds of learning jobs, as measured by the AMS 560 project, at twice the load of one GPU."""

    name = "ams560"
    jobs: Count = 40
    """How many jobs: equally many of each kind, in random order."""
    devices: Count = 1
    """How many GPUs the load refers to."""
    load: Positive = 2
    """Work that arrives, divided by what those GPUs can do."""
    spread: Annotated[float, Field(ge=0, le=2)] = 0.2
    """How much run times of a kind differ (sigma of a lognormal)."""
    device_memory_gb: Positive = 16
    """Memory of a device. Each job takes the part of it that was measured."""
    wide: bool = False
    """Whether a cnn takes 4 GPUs and an lstm 2, for as long as the project measured on one."""

    def arrivals(self, random: Random) -> list[Arrival]:
        kinds = [list(AMS560_JOBS)[number % len(AMS560_JOBS)] for number in range(self.jobs)]
        random.shuffle(kinds)
        work = fmean(seconds * self._count_gpus(kind) for kind, (seconds, _, _) in AMS560_JOBS.items())
        now, arrivals = 0.0, []
        for id, kind in zip(job_ids(self.jobs), kinds, strict=True):
            seconds, utilization, memory = AMS560_JOBS[kind]
            memory_mb = round(1024 * self.device_memory_gb * memory / 100)
            job = Job(id, now, self._count_gpus(kind), memory_mb, kind=kind)
            duration = seconds * random.lognormvariate(-(self.spread**2) / 2, self.spread)
            arrivals.append(Arrival(job, duration, utilization))
            now += random.expovariate(self.devices * self.load / work)
        return arrivals

    def _count_gpus(self, kind: str) -> int:
        return AMS560_WIDTHS.get(kind, 1) if self.wide else 1
