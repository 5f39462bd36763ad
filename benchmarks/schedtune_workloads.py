"""The workloads and clusters of the SchedTune study (benchmarks/schedtune.py), with every assumption."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job, Node, all_devices
from gpu_flows.schedulers.prediction.gavel_pairs import gavel_pairs
from gpu_flows.schedulers.prediction.interference import PairExcess
from gpu_flows.schedulers.simulation.profiles import Profile
from gpu_flows.schedulers.workload import Arrival


@dataclass(frozen=True)
class Workload:
    """Jobs as they truly are, the cluster they run on, and the speeds of its GPU models."""

    name: str
    arrivals: list[Arrival]
    nodes: list[Node]
    profile: Profile
    pairs: tuple[PairExcess, ...]  # how much jobs on one device slow each other down


# -- SchedTune's published arrivals -----------------------------------------------------------

SCHEDTUNE_CLUSTER = "1x1:RTX 2070 Super:8+1x1:RTX 3070:8+1x1:RTX 3090:24"
STREAMING_MULTIPROCESSORS = {"RTX 2070 Super": 40, "RTX 3070": 46, "RTX 3090": 82}  # the speeds go by them
FORWARD_GFLOPS = {  # of one 224 x 224 picture, as torchvision states them
    **{"resnet18": 1.8, "resnet34": 3.7, "resnet50": 4.1, "resnet101": 7.8, "resnet152": 11.5},
    **{"vgg11": 7.6, "vgg13": 11.3, "vgg16": 15.5, "vgg19": 19.6},
    **{"densenet121": 2.8, "densenet169": 3.4, "densenet201": 4.3},
}
PICTURES = 50_000  # of an epoch of CIFAR-10
USED_GFLOPS = 3_600.0  # a second: 40% of what an RTX 2070 Super can do
INFERENCE_S = 15.0  # to start a container, load a network and classify a picture
INFERENCE, INFERENCE_EXCESS = "inference", 0.1  # a picture keeps the GPU busy for a small part of that time
SIMILAR = {"RTX 2070 Super": "p100", "RTX 3070": "p100", "RTX 3090": "v100"}  # of 56 and 80 multiprocessors
CONTEXT_MB = 700.0  # of a process that computes nothing yet


def read_schedtune(folder: Path, random: Random, inference_excess: float = INFERENCE_EXCESS) -> Workload:
    """Return the 360 published arrivals of SchedTune on the GPU models that it used, one device of each.

    Published are the times, networks and batch sizes, and the measured peak of training. Run times are not:
    training takes three times the operations of a forward pass for each picture of an epoch, and inference
    a constant time; both vary by 10%. The memory of inference is not either: it is that of a context,
    the parameters and one picture's activations.
    """
    stats = _read_stats(folder / "model_stats.csv")
    started: datetime | None = None
    arrivals = []
    with (folder / "baseline_arrival_times.csv").open(encoding="utf-8") as file:
        for number, (when, job_name, *_) in enumerate(csv.reader(file)):
            at = datetime.strptime(re.sub(r" [A-Z]{3} ", " ", when), "%a %b %d %H:%M:%S %Y")
            started = started or at
            submitted = (at - started).total_seconds()
            arrivals.append(_schedtune_job(number, submitted, job_name, stats, random))
    speeds = {("", model): {1: float(count)} for model, count in STREAMING_MULTIPROCESSORS.items()}
    speeds |= {(INFERENCE, model): {1: 1.0} for model in STREAMING_MULTIPROCESSORS}
    nodes = declare(SCHEDTUNE_CLUSTER)
    profile = Profile(speeds, "RTX 2070 Super")
    return Workload("SchedTune's arrivals", arrivals, nodes, profile, _schedtune_pairs(inference_excess))


def _schedtune_pairs(inference_excess: float) -> tuple[PairExcess, ...]:
    """Return what Gavel measured on the GPU model with the most similar number of multiprocessors."""
    pairs = [
        pair._replace(model=model.lower())
        for model, like in SIMILAR.items()
        for pair in gavel_pairs()
        if pair.model == like
    ]
    kinds = sorted({pair.kind for pair in pairs} | {INFERENCE})
    for model in SIMILAR:
        for kind in kinds:
            pairs.append(PairExcess(model.lower(), kind, INFERENCE, inference_excess))
            if kind != INFERENCE:
                pairs.append(PairExcess(model.lower(), INFERENCE, kind, inference_excess))
    return tuple(pairs)


def _schedtune_job(
    number: int,
    submitted: float,
    name: str,
    stats: dict[tuple[str, int], tuple[float, float]],
    random: Random,
) -> Arrival:
    network = next(part for part in name.split("-") if part in FORWARD_GFLOPS)
    trained = re.search(r"batchsize(\d+)", name)
    varies = random.lognormvariate(0.0, 0.1)
    if trained:
        batch = int(trained[1])
        memory_mb, _ = stats[network, batch]
        duration = 3 * PICTURES * FORWARD_GFLOPS[network] / USED_GFLOPS * varies
        family = "ResNet-18" if network in ("resnet18", "resnet34") else "ResNet-50"
        kind = f"{family} (batch size {max(batch, 16)})"  # the measured kind that is most like it
    else:
        _, memory_mb = stats[network, 8]
        duration, kind = INFERENCE_S * varies, INFERENCE
    return Arrival(Job(f"{number:04}", submitted, kind=kind), duration, memory_mb=round(memory_mb))


def _read_stats(path: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Return the MiB of training and of inference by network and batch size, the most on any GPU model."""
    found: dict[tuple[str, int], tuple[float, float]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["model"], int(row["batchsize"]))
            inference = CONTEXT_MB + float(row["parameters"]) + float(row["activations"]) / key[1]
            training = max(float(row["peak mem usage"]), found.get(key, (0.0, 0.0))[0])
            found[key] = (training, inference)
    return found


# -- generated --------------------------------------------------------------------------------

GENERATED_CLUSTER = "2x4:K80:12+2x4:P100:16+2x4:V100:16"
SPEEDS = {"K80": 1.0, "P100": 3.3, "V100": 4.1}  # medians of Gavel's 26 kinds, relative to K80
MEMORY_MB = (824, 1796, 2105, 2589, 3080, 3878, 4491, 5411, 7475, 10454, 11655)
"""Quantiles 0, 5, 10, 17.5, 25, 37.5, 50, 62.5, 75, 90 and 95% of SchedTune's 240 measured peaks."""
QUANTILES = (0.0, 0.05, 0.1, 0.175, 0.25, 0.375, 0.5, 0.625, 0.75, 0.9, 0.95)
MEDIAN_S, SIGMA, LONGEST_S = 1200.0, 1.0, 7200.0  # run times on a V100: lognormal, up to two hours


def generate(random: Random, load: float, jobs: int) -> Workload:
    """Return Poisson arrivals of Gavel's kinds of jobs on GPU models for which Gavel measured all pairs.

    The load is the work that arrives, divided by what the devices can do if each serves one job at a time.
    One job in ten asks for 2 devices, one in twenty for 4. Memory does not depend on the kind.
    """
    nodes = declare(GENERATED_CLUSTER)
    kinds = sorted({pair.kind for pair in gavel_pairs()})
    capacity = sum(SPEEDS[device.model] for device in all_devices(nodes)) / SPEEDS["V100"]
    arrivals, now = [], 0.0
    sizes = random.choices((1, 2, 4), (85, 10, 5), k=jobs)
    durations = [min(random.lognormvariate(0.0, SIGMA) * MEDIAN_S, LONGEST_S) for _ in range(jobs)]
    work = sum(size * duration for size, duration in zip(sizes, durations, strict=True)) / jobs
    for number, (gpus, duration) in enumerate(zip(sizes, durations, strict=True)):
        job = Job(f"{number:04}", now, gpus, kind=random.choice(kinds))
        arrivals.append(Arrival(job, duration, memory_mb=_draw_memory(random)))
        now += random.expovariate(capacity * load / work)
    speeds = {("", model): {1: speed, 2: 2 * speed} for model, speed in SPEEDS.items()}
    return Workload(f"generated, load {load:g}", arrivals, nodes, Profile(speeds, "V100"), gavel_pairs())


def _draw_memory(random: Random) -> int:
    drawn = random.uniform(QUANTILES[0], QUANTILES[-1])
    above = next(index for index, quantile in enumerate(QUANTILES) if drawn <= quantile and index)
    part = (drawn - QUANTILES[above - 1]) / (QUANTILES[above] - QUANTILES[above - 1])
    return round(MEMORY_MB[above - 1] + part * (MEMORY_MB[above] - MEMORY_MB[above - 1]))


def relative_errors(random: Random, median: float, p90: float, worst_under: float) -> Iterator[float]:
    """Yield relative errors of a predictor without end: lognormal in size, of either sign, cut off below."""
    sigma = math.log(p90 / median) / 1.2816  # the 90% quantile of a normal distribution
    while True:
        yield max(-worst_under, random.choice((-1, 1)) * median * random.lognormvariate(0.0, sigma))
