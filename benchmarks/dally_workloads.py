"""The workloads of the Dally study: jobs of six models, generated or taken from a trace, and their clusters.

Dally's own job files have no licence, so the generated jobs only have the same make-up as far as it is known:
six models, 1 to 56 GPUs, 19.8 GPU-hours of work in the mean, all at time 0 or with Poisson arrivals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job, Node
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival

MODELS = ("alexnet", "resnet18", "resnet50", "vgg11", "mobilenetv3", "bertlarge")
WIDTHS = {1: 20, 2: 10, 4: 15, 8: 30, 16: 12, 24: 3, 32: 6, 48: 2, 56: 2}  # GPUs: weight
LONGEST_S = 48 * 3600.0  # otherwise the makespan is that of one long job on one GPU, whatever the policy
MEDIAN_GPU_H, SIGMA = 3.9, 1.8  # lognormal work of a job: a mean of 19.8 GPU-hours, as in Dally's 100 jobs


@dataclass(frozen=True)
class Workload:
    """Jobs for a cluster."""

    name: str
    nodes: list[Node]
    arrivals: list[Arrival]


def generate(name: str, cluster: str, jobs: int, jobs_per_hour: float, random: Random) -> Workload:
    """Generate jobs that all arrive at time 0, or with this rate if it is not 0."""
    arrivals, now = [], 0.0
    for number in range(jobs):
        (gpus,) = random.choices(list(WIDTHS), list(WIDTHS.values()))
        work_s = 3600 * MEDIAN_GPU_H * random.lognormvariate(0, SIGMA)
        job = Job(
            f"{number:04}", submitted=now, gpus=gpus, kind=random.choice(MODELS), may_span_nodes=gpus > 1
        )
        arrivals.append(Arrival(job, min(work_s / gpus, LONGEST_S)))
        now += random.expovariate(jobs_per_hour / 3600) if jobs_per_hour else 0.0
    return Workload(name, declare(cluster), arrivals)


def read_trace(path: Path, cluster: str, jobs: int, random: Random) -> Workload:
    """Return a random stretch of so many jobs of a public trace, with a model for each drawn by the seed."""
    every = sorted(load(path).arrivals, key=lambda arrival: arrival.job.submitted)
    first = random.randrange(max(1, len(every) - jobs))
    chosen = every[first : first + jobs]
    begin = chosen[0].job.submitted
    arrivals = [
        replace(
            arrival,
            job=replace(
                arrival.job,
                submitted=arrival.job.submitted - begin,
                kind=random.choice(MODELS),
                may_span_nodes=arrival.job.gpus > 1,
            ),
        )
        for arrival in chosen
    ]
    return Workload(f"{path.stem}, {jobs} jobs", declare(cluster), arrivals)


BATCH = "batch: 500 jobs at time 0, 8 racks x 8 nodes x 8 GPUs"
POISSON = "poisson: 100 jobs, 32 an hour, 4 racks x 4 nodes x 8 GPUs"
GENERATED: dict[str, Callable[[Random], Workload]] = {
    BATCH: lambda random: generate(BATCH, "64x8@8", 500, 0.0, random),
    POISSON: lambda random: generate(POISSON, "16x8@4", 100, 32.0, random),
}
