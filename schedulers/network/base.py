"""What the simulator asks of a network, whether it is computed (`network`) or given as factors (`tiers`)."""

from __future__ import annotations

from typing import Protocol

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.network.shape import Shape
from gpu_flows.schedulers.network.traffic import Traffic


class NetworkModel(Protocol):
    @property
    def name(self) -> str:
        """The name that results state."""

    def slowdown(self, job: Job, shape: Shape) -> float:
        """Return how many times as long the job takes on devices of this shape as on one node, if no other
        job uses the network."""

    def traffic(self, job: Job, shape: Shape) -> Traffic | None:
        """Return what the job sends over its uplinks; None if jobs do not slow each other down."""
