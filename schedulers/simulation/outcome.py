"""What a simulation leaves: its jobs, their attempts, and what its policies did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpu_flows.schedulers.model import Device, Job, Node, Offer, Reason, Tier
from gpu_flows.schedulers.workload import Arrival


@dataclass(slots=True)
class Attempt:
    """One attempt of a job, from its start to its stop."""

    job_id: str
    number: int
    started: float
    ended: float
    devices: tuple[Device, ...]
    outcome: str  # completed, preempted, moved, lost, cancelled or oom
    tier: Tier = Tier.NODE
    comm_s: float = 0.0  # time lost to the network


@dataclass(slots=True)
class JobResult:
    """The outcome of one job."""

    arrival: Arrival
    started: float | None = None  # of its first attempt
    ended: float | None = None
    ran_s: float = 0.0
    attempts: int = 0
    devices: tuple[Device, ...] = ()  # of the last attempt
    reason: Reason | None = None  # why it did not end
    comm_s: float = 0.0  # time lost to the network, over all attempts
    told: Job | None = None  # the job as the policy knows it, with its estimated duration

    @property
    def turnaround_s(self) -> float:
        return math.nan if self.ended is None else self.ended - self.arrival.job.submitted

    @property
    def queueing_s(self) -> float:
        return self.turnaround_s - self.ran_s


class Swap(NamedTuple):
    """From this time on, this policy decides."""

    time: float
    policy: str
    options: dict[str, Any]


@dataclass(slots=True)
class Simulation:
    """The outcome of a whole simulation."""

    policy: str
    nodes: Sequence[Node]
    jobs: list[JobResult]
    attempts: list[Attempt] = field(default_factory=list)
    offers: list[tuple[float, Offer]] = field(default_factory=list)  # with their times, without repetitions
    decisions: int = 0
    preemptions: int = 0  # attempts after which the job waited
    moves: int = 0  # attempts after which the job continued at once, on other devices
    losses: int = 0  # attempts that ended with a breakdown
    ooms: int = 0  # attempts that ran out of memory
    policy_error: str = ""
    network: str = ""  # its name; empty: jobs lose nothing to the network
    swaps: list[Swap] = field(default_factory=list)  # the first is the policy that it begins with
