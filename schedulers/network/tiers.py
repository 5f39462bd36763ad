"""A network as two factors: how much slower every job is across nodes and across racks."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.network.shape import Shape, tier_of


@dataclass(frozen=True)
class Tiers:
    """The slowdown of a job that spans the nodes of one rack, and of one that spans racks."""

    nodes: float = 1.0
    racks: float = 1.0
    kinds: dict[str, tuple[float, float]] = field(default_factory=dict)  # kind -> (nodes, racks)

    @property
    def name(self) -> str:
        return f"{self.nodes:g},{self.racks:g}"

    def slowdown(self, job: Job, shape: Shape) -> float:
        nodes, racks = self.kinds.get(job.kind, (self.nodes, self.racks))
        return (1.0, nodes, racks)[tier_of(shape)]

    def traffic(self, job: Job, shape: Shape) -> None:
        """Jobs do not slow each other down."""
