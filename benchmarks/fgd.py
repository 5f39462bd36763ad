"""Measures how much of a cluster each placement fills: FGD's published experiment on our engine.

    python benchmarks/fgd.py [--seeds 10] [--placements fragmentation,best_fit] [--json]

The pods of Alibaba's 2023 GPU-sharing cluster arrive one after the other in random order and never
end, until they have asked for 130 % of its 6,212 GPUs. A pod that fits nowhere is withdrawn. The
output states how many percent of the GPUs are allocated when 100 % and when 130 % has been asked
for, next to the published figures of the paper's policies. The exit code is 1 if `fragmentation`
differs by more than half a point.

Differences to the paper: pods that ask for no GPU are left out, because our engine does not place
them (they hold a sixth of the processors there); the random numbers are ours; and our FGD has to
learn the distribution of the pods.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Node
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.traces.alibaba2023 import WHOLE_DEVICE
from gpu_flows.schedulers.traces.alibaba2023 import nodes as read_nodes
from gpu_flows.schedulers.traces.reading import read

DATA = Path(__file__).parents[1] / "tests" / "traces" / "alibaba2023"
DEMANDS = (100, 130)  # percent of all GPUs
FIRST_SEED = 42
TOLERANCE = 0.5  # points between our FGD and the published one


def read_cluster() -> list[Node]:
    return read_nodes(DATA / "openb_node_list_gpu_node.csv.gz")


def read_pods() -> list[Job]:
    return [arrival.job for arrival in read(DATA / "openb_pod_list_default.csv.gz", static=True)]


def read_published() -> dict[str, tuple[float, ...]]:
    """Return the published allocation of each policy at each demand, the mean of ten seeds."""
    with (DATA / "published_allocation.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        policy: tuple(
            statistics.mean(float(row[str(demand)]) for row in rows if row["sc_policy"] == policy)
            for demand in DEMANDS
        )
        for policy in dict.fromkeys(row["sc_policy"] for row in rows)
    }


def measure_allocation(
    placement: str, nodes: Sequence[Node], jobs: Sequence[Job], seed: int
) -> tuple[float, ...]:
    """Return the percentage of GPUs that are allocated at each demand. Like the authors, take the mean over
    all moments at which the demand rounds to that percentage."""
    random = Random(seed)
    gpus = sum(len(node.devices) for node in nodes)
    drawn = _draw_jobs(jobs, gpus, random)
    options = {"placement": placement, "sharing": "shared", "utilization_threshold": 100, "skip": True}
    engine = Engine(random.sample(nodes, len(nodes)), make_policy("fifo", options))
    demanded = held = 0.0
    seen: dict[int, list[float]] = {demand: [] for demand in DEMANDS}
    for job in drawn:
        engine.submit(job)
        engine.tick(job.submitted)
        demanded += _count_gpus(job)
        if engine.is_waiting(job.id):
            engine.withdraw(job.id)
        else:
            held += _count_gpus(job)
        seen.get(round(100 * demanded / gpus), []).append(100 * held / gpus)
    if engine.policy_error:
        raise RuntimeError(engine.policy_error)
    return tuple(statistics.mean(seen[demand]) for demand in DEMANDS)


def _draw_jobs(jobs: Sequence[Job], gpus: int, random: Random) -> list[Job]:
    """Return all jobs in random order, then random jobs again until the largest demand is reached."""
    drawn = random.sample(jobs, len(jobs))
    missing = gpus * max(DEMANDS) / 100 - sum(map(_count_gpus, drawn))
    while missing > 0:
        drawn.append(random.choice(jobs))
        missing -= _count_gpus(drawn[-1])
    return [replace(job, id=f"{number:06}", submitted=float(number)) for number, job in enumerate(drawn)]


def _count_gpus(job: Job) -> float:
    return job.gpus * (job.memory_mb or WHOLE_DEVICE) / WHOLE_DEVICE


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many random orders")
    parser.add_argument("--placements", default="fragmentation,best_fit,pack,first_fit,spread")
    parser.add_argument("--json", action="store_true", help="print one JSON object per placement")
    options = parser.parse_args()
    nodes, jobs, authors = read_cluster(), read_pods(), read_published()
    off = 0.0
    if not options.json:
        print(f"{'% of GPUs allocated at demand':32}" + "".join(f"{demand:7}%" for demand in DEMANDS))
        for policy, figures in authors.items():
            print(_format_line(f"published: {policy}", figures))
    for placement in options.placements.split(","):
        began = time.process_time()
        runs = [
            measure_allocation(placement, nodes, jobs, FIRST_SEED + number) for number in range(options.seeds)
        ]
        cpu_s = (time.process_time() - began) / options.seeds
        ours = tuple(map(statistics.mean, zip(*runs, strict=True)))
        if placement == "fragmentation":
            off = max(abs(our - author) for our, author in zip(ours, authors["06-FGD"], strict=True))
        if options.json:
            allocated = dict(zip(DEMANDS, ours, strict=True))
            print(json.dumps({"placement": placement, "allocated": allocated, "cpu_s": cpu_s}))
        else:
            print(
                _format_line(f"ours: {placement}", ours),
                f"  {cpu_s:.1f} s of processor time a seed",
                flush=True,
            )
    return int(off > TOLERANCE)


def _format_line(what: str, figures: Sequence[float]) -> str:
    return f"  {what:30}" + "".join(f"{figure:8.2f}" for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
