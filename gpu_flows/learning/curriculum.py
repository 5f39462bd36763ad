"""The episodes that are trained on: short generated workloads on small clusters, and windows of traces.

Each episode draws the kind of workload, the cluster and how heavy the load is; the arrivals are then
stretched or compressed to that load. Later episodes are longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Node, all_devices
from gpu_flows.schedulers.simulation.episode import Episode
from gpu_flows.schedulers.simulation.generators import parse
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival

WORKLOADS = (
    "poisson:sigma=1.2",
    "poisson:sigma=1.5",
    "poisson:sigma=2,sizes=1:60+2:15+4:20+8:5",
    "poisson:durations=exponential",
    "bursty:rate_per_hour=600",
    "bursty:rate_per_hour=300,sigma=2",
    "recurring",
    "recurring:kinds=6,between=1,within=0.3",
    "recurring:kinds=20,between=1.6,within=0.9,group=4",
    "ams560",
)
CLUSTERS = ("1x4", "2x4", "3x4", "1x8", "4x4", "2x8", "3x8", "4x8")
LOADS = (0.7, 2.5)  # work that arrives, relative to what the cluster can do
RESTARTS = (0.0, 0.0, 0.01, 0.02)  # what a preemption costs, as a part of the mean run time
ON_ONE_NODE = 0.4  # part of the episodes in which jobs must not span nodes, so that placement matters
SHORTEST, LONGEST = 32, 128  # jobs of an episode
ANY_DEVICE: dict[str, Any] = {"memory_mb": 0, "models": (), "nodes": (), "cpus": 0.0, "ram_mb": 0}


@dataclass
class Curriculum:
    """Draws episodes. It is called with the random numbers of an environment."""

    workloads: Sequence[str] = WORKLOADS
    clusters: Sequence[str] = CLUSTERS
    traces: Sequence[Path] = ()
    drawn: int = 0
    """Episodes drawn so far, by this environment."""

    def __call__(self, random: Random) -> Episode:
        self.drawn += 1
        most = min(LONGEST, SHORTEST + 2 * self.drawn)
        jobs = random.randint(SHORTEST, most)
        cluster = random.choice(self.clusters)
        if self.traces and (not self.workloads or random.random() < 0.5):
            trace = random.choice(self.traces)
            name, arrivals = trace.stem, draw_window(trace, jobs, random)
        else:
            name = random.choice(self.workloads)
            arrivals = _generate(name, jobs, random)
        smallest = min(each.job.gpus for each in arrivals)
        nodes = declare(cluster)
        if len(all_devices(nodes)) < smallest:
            nodes = self._find_larger(smallest, name, random)
        devices = len(all_devices(nodes))
        arrivals = [each for each in arrivals if each.job.gpus <= devices]
        if random.random() < ON_ONE_NODE:
            arrivals = [_keep_together(each, len(nodes[0].devices)) for each in arrivals]
        low, high = LOADS
        arrivals = set_load(arrivals, devices, low * (high / low) ** random.random())
        mean_s = sum(each.duration_s for each in arrivals) / len(arrivals)
        return Episode(arrivals, nodes, random.choice(RESTARTS) * mean_s, name)

    def _find_larger(self, gpus: int, name: str, random: Random) -> list[Node]:
        """Return a cluster that has so many devices."""
        clusters = [nodes for nodes in map(declare, self.clusters) if len(all_devices(nodes)) >= gpus]
        if not clusters:
            raise ValueError(f"No cluster of the training has the {gpus} GPUs that each job of {name} needs.")
        return random.choice(clusters)


def _generate(spec: str, jobs: int, random: Random) -> list[Arrival]:
    return parse(spec).model_copy(update={"jobs": jobs}).arrivals(random)


def _keep_together(arrival: Arrival, most: int) -> Arrival:
    """Return the job, confined to one node if one can hold it."""
    return replace(arrival, job=replace(arrival.job, may_span_nodes=arrival.job.gpus > most))


def draw_window(trace: Path, jobs: int, random: Random) -> list[Arrival]:
    """Return so many jobs of the trace that follow one another, the first at second 0."""
    arrivals = _read(trace)
    first = random.randrange(max(1, len(arrivals) - jobs))
    window = arrivals[first : first + jobs]
    start = window[0].job.submitted
    return [replace(each, job=replace(each.job, submitted=each.job.submitted - start)) for each in window]


_TRACES: dict[Path, list[Arrival]] = {}


def _read(trace: Path) -> list[Arrival]:
    if trace not in _TRACES:
        found = load(trace).arrivals
        _TRACES[trace] = [each for each in found if each.duration_s >= 1 and each.job.gpus > 0]
        if not _TRACES[trace]:
            raise ValueError(f"No job of {trace.name} uses a GPU for a second or more.")
    return _TRACES[trace]


def set_load(arrivals: Sequence[Arrival], devices: int, wanted: float) -> list[Arrival]:
    """Return the same jobs, arriving so fast that their work is `wanted` times what the devices can do. They
    accept any device."""
    work = sum(each.duration_s * each.job.gpus for each in arrivals)
    lasts = max(each.job.submitted for each in arrivals)
    factor = work / (wanted * devices) / lasts if lasts else 1.0
    return [
        replace(each, job=replace(each.job, submitted=each.job.submitted * factor, **ANY_DEVICE))
        for each in arrivals
    ]
