"""The jobs that the simulator runs, with what a live scheduler would not know about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu_flows.schedulers.model import Device, Job, Node


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job of a workload."""

    job: Job
    duration_s: float  # its run time on exactly the devices it asks for, alone and without interruption
    utilization: float = 100.0  # of each of its devices, in percent
    memory_mb: int = 0  # what it truly needs on each device; 0: what it states
    launch_s: float = 0.0  # for which every attempt holds its devices before it works
    release_s: float = 0.0  # for which its devices stay held after its end, where that is simulated
    queued: float | None = None  # when it enters the queue; None: when it was submitted

    @property
    def enters(self) -> float:
        """When it enters the queue."""
        return self.job.submitted if self.queued is None else self.queued

    @property
    def true_memory_mb(self) -> int:
        """What it needs on each device; 0 if that is unknown."""
        return self.memory_mb or self.job.memory_mb


def allow_spanning(arrivals: Iterable[Arrival], wider_than: int = 0) -> list[Arrival]:
    """Return the same workload, but let every job for more than `wider_than` devices span nodes."""
    return [
        replace(arrival, job=replace(arrival.job, may_span_nodes=True))
        if arrival.job.gpus > wider_than and not arrival.job.may_span_nodes
        else arrival
        for arrival in arrivals
    ]


def forget_other_nodes(arrivals: Iterable[Arrival], nodes: Iterable[Node]) -> list[Arrival]:
    """Return the same workload for another cluster: a job that asks for nodes of which there is none takes
    any."""
    places = [Device("", node.name, 0) for node in nodes]
    known: dict[tuple[str, ...], bool] = {(): True}

    def has_nodes(patterns: tuple[str, ...]) -> bool:
        if patterns not in known:
            known[patterns] = any(map(Job("", nodes=patterns).accepts, places))
        return known[patterns]

    return [
        arrival if has_nodes(arrival.job.nodes) else replace(arrival, job=replace(arrival.job, nodes=()))
        for arrival in arrivals
    ]
