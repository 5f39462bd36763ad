"""The workloads of the benchmark `rl.py`: none of them was trained on.

Generated ones have seeds, clusters and lengths that training never draws, and some have distributions that
are not among those of training. Traces are given by their files; training uses none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

from gpu_flows.learning.curriculum import draw_window, set_load
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Node, all_devices
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival, allow_spanning

GENERATED = {  # name: spec without the number of jobs, cluster, load
    "lognormal": ("poisson:sigma=1.5", "5x4", 1.6),
    "lognormal, wide": ("poisson:sigma=2,sizes=1:50+2:20+4:20+8:10", "5x4", 1.6),
    "exponential": ("poisson:durations=exponential,mean_s=5400", "5x8", 1.6),
    "constant": ("poisson:durations=constant", "5x4", 1.4),
    "bursty": ("bursty:rate_per_hour=400,burst_s=1800", "7x4", 1.5),
    "bursty, long jobs": ("bursty:mean_s=14400,sigma=1.8", "5x4", 1.8),
    "recurring": ("recurring:kinds=16,users=10", "7x4", 1.6),
    "recurring, unlike": ("recurring:kinds=24,between=2,within=0.4", "5x4", 1.6),
    "recurring, groups": ("recurring:kinds=10,group=8,within=0.8", "5x4", 1.4),
    "ams560": ("ams560:spread=0.3", "1x10", 1.8),
}
TRACE_CLUSTER, TRACE_LOAD = "5x8", 1.6


@dataclass(frozen=True)
class Workload:
    """Jobs on a cluster."""

    name: str
    arrivals: Sequence[Arrival]
    nodes: Sequence[Node]


def make_generated(jobs: int, seeds: range) -> list[Workload]:
    """Return the generated workloads, each with several seeds."""
    found = []
    for name, (spec, cluster, wanted) in GENERATED.items():
        nodes = declare(cluster)
        for seed in seeds:
            arrivals = generate(f"{spec},jobs={jobs}", seed)
            arrivals = set_load(arrivals, len(all_devices(nodes)), wanted)
            found.append(Workload(f"{name}, seed {seed}", arrivals, nodes))
    return found


def read_windows(trace: Path, jobs: int, seeds: range) -> list[Workload]:
    """Return windows of a trace, at a heavy load."""
    nodes, found = declare(TRACE_CLUSTER), []
    devices = len(all_devices(nodes))
    for seed in seeds:
        window = draw_window(trace, jobs, Random(seed))
        window = allow_spanning([each for each in window if each.job.gpus <= devices], wider_than=8)
        found.append(Workload(f"{trace.stem}, seed {seed}", set_load(window, devices, TRACE_LOAD), nodes))
    return found


def make_480(trace: Path, seed: int, wanted: float) -> Workload:
    """Return 480 jobs on 60 GPUs, as in the experiment of Tiresias, whose own 480 jobs are not published.

    Sizes, models and run times are those of its 60 published jobs, drawn again, and so are the gaps between
    arrivals, which are then compressed to the load.
    """
    observed, random = load(trace).arrivals, Random(seed)
    gaps = [b.job.submitted - a.job.submitted for a, b in pairwise(observed)]
    now, arrivals = 0.0, []
    for number in range(480):
        like = random.choice(observed)
        job = replace(like.job, id=f"job-{number:03d}", submitted=now)
        arrivals.append(replace(like, job=job))
        now += random.choice(gaps)
    return Workload(f"480 jobs, seed {seed}", set_load(allow_spanning(arrivals), 60, wanted), declare("15x4"))
