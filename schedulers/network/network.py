"""The slowdown of a job by the network, computed from the links of each tier and what training sends.

    iteration = computing + the part of sending that does not overlap with it
    slowdown  = iteration on devices of a shape / iteration on as many devices of one node

It is at least 1, and 1 in one node: the durations of a trace are those on one node. An all-reduce is
hierarchical: the devices of a node add up their gradients, then the nodes of a rack, then the racks, and the
messages of an iteration follow each other through these stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.network.collectives import Link, allreduce_s, bytes_sent, latency_s
from gpu_flows.schedulers.network.models import Models, TrainedModel
from gpu_flows.schedulers.network.shape import Shape
from gpu_flows.schedulers.network.traffic import Stage, Traffic

Uneven = Literal["fullest", "flat"]
"""How an all-reduce runs if nodes or racks have different numbers of devices. `fullest`: each stage takes as
long as its largest group. `flat`: the devices of uneven nodes form one group in their rack, those of uneven
racks one group in the cluster."""

MOST_SHAPES = 100_000  # remembered at a time


@dataclass(frozen=True)
class Network:
    """The links of a cluster, and the models that are trained on it."""

    name: str
    node: Link  # of a device, to the others of its node
    rack: Link  # of a node, to the others of its rack
    cluster: Link  # of a rack, to the other racks
    models: Models
    uneven: Uneven = "fullest"
    contention: bool = True  # whether jobs that share an uplink slow each other down
    congestion: float = 1.0  # traffic of others: divides bandwidth and multiplies latency beyond the node
    source: str = ""
    caveat: str = ""  # what whoever reads a result should know
    _known: dict[tuple[str, Shape], tuple[float, Traffic]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )  # slowdown and traffic by kind of job and shape

    def __getstate__(self) -> dict[str, object]:
        """Leave out what is remembered: a network is sent to the processes of policies."""
        return {**self.__dict__, "_known": {}}

    def slowdown(self, job: Job, shape: Shape) -> float:
        """Return how many times as long the job takes on devices of this shape as on one node, if no other
        job uses the network."""
        return self._look_up(job.kind, shape)[0]

    def traffic(self, job: Job, shape: Shape) -> Traffic | None:
        """Return what the job sends over its uplinks; None if jobs do not slow each other down."""
        return self._look_up(job.kind, shape)[1] if self.contention else None

    def _look_up(self, kind: str, shape: Shape) -> tuple[float, Traffic]:
        known = self._known.get((kind, shape))
        if known is None:
            if len(self._known) >= MOST_SHAPES:
                self._known.clear()
            traffic = self.compute_traffic(self.models.find(kind), shape)
            known = self._known[kind, shape] = traffic.slowdown(), traffic
        return known

    def compute_traffic(self, model: TrainedModel, shape: Shape) -> Traffic:
        """Return what an iteration of the model computes and sends on devices of this shape."""
        size = model.gradient_bytes / model.messages
        rack, cluster = self.rack.congested(self.congestion), self.cluster.congested(self.congestion)
        devices, nodes, racks = self._count_members(shape)
        to_nodes, to_racks = bytes_sent(rack, nodes, size), bytes_sent(cluster, racks, size)
        node_capacity, rack_capacity = rack.capacity or rack.bandwidth, cluster.capacity or cluster.bandwidth
        together = allreduce_s(self.node, sum(sum(counts) for counts in shape), size)
        one_node = Traffic(model.messages, model.compute_s, model.overlap, together)
        return replace(
            one_node,
            in_nodes_s=allreduce_s(self.node, devices, size),
            in_racks=Stage(latency_s(rack, nodes), to_nodes / rack.bandwidth, to_nodes / node_capacity),
            across_racks=Stage(
                latency_s(cluster, racks),
                to_racks / cluster.bandwidth,
                to_racks / node_capacity,
                to_racks / rack_capacity,
            ),
            one_node_s=one_node.iteration_s(),
        )

    def _count_members(self, shape: Shape) -> tuple[int, int, int]:
        """Return how many devices of a node, nodes of a rack, and racks take part in the stages."""
        devices = max((max(nodes) for nodes in shape if nodes), default=0)
        fullest = max(map(len, shape), default=0)
        if self.uneven == "fullest" or all(nodes == (devices,) * fullest for nodes in shape):
            return devices, fullest, len(shape)
        totals = {sum(nodes) for nodes in shape}
        if len(totals) == 1:
            return 1, totals.pop(), len(shape)
        return 1, 1, sum(sum(nodes) for nodes in shape)
