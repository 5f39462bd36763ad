"""What the simulator is fed: jobs, and what of them only the world knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu_flows.schedulers.model import Job


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job of a trace. It arrives at `job.submitted`."""

    job: Job
    duration_s: float  # how long it runs on exactly the devices it asks for, alone and undisturbed
    utilization: float = 100.0  # how busy it keeps a device, in percent


def spanning(arrivals: Iterable[Arrival], wider_than: int = 0) -> list[Arrival]:
    """The same workload, with every job for more than so many devices free to span nodes."""
    return [
        replace(each, job=replace(each.job, may_span_nodes=True))
        if each.job.gpus > wider_than and not each.job.may_span_nodes
        else each
        for each in arrivals
    ]
