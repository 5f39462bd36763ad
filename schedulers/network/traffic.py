"""One iteration of a job on devices of a shape: what it computes, and what it sends over its uplinks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gpu_flows.schedulers.network.collectives import pipeline_s


class Stage(NamedTuple):
    """The part of an all-reduce of one message in which nodes, or racks, send to each other."""

    latency_s: float = 0.0
    transfer_s: float = 0.0  # at the bandwidth that a job has at most
    node_uplink_s: float = 0.0  # how long the message occupies the uplink of a node
    rack_uplink_s: float = 0.0  # how long the message occupies the uplink of a rack


NOTHING = Stage()


@dataclass(frozen=True)
class Traffic:
    """The stages of an all-reduce, and how the messages of an iteration overlap with computing."""

    messages: int
    compute_s: float
    overlap: float  # the part of the computing time in which messages can be sent
    in_nodes_s: float  # the stage in which the devices of each node send to each other
    in_racks: Stage = NOTHING
    across_racks: Stage = NOTHING
    one_node_s: float = 0.0  # an iteration on as many devices of one node

    def iteration_s(self, node_senders: float = 1.0, rack_senders: float = 1.0) -> float:
        """Return how long an iteration takes if so many jobs, this one included, send over the busiest of
        its nodes' and of its racks' uplinks while it does."""
        stages = [self.in_nodes_s]
        for latency_s, transfer_s, node_uplink_s, rack_uplink_s in (self.in_racks, self.across_racks):
            shared_s = max(node_uplink_s * node_senders, rack_uplink_s * rack_senders)
            stages.append(latency_s + max(transfer_s, shared_s))
        # the last message is sent after everything is computed, so nothing hides it
        hidden = self.overlap * self.compute_s
        return self.compute_s + max(sum(stages), pipeline_s(stages, self.messages) - hidden)

    def slowdown(self, node_senders: float = 1.0, rack_senders: float = 1.0) -> float:
        """Return how many times as long an iteration takes as on one node."""
        return max(1.0, self.iteration_s(node_senders, rack_senders) / self.one_node_s)

    @cached_property
    def loads(self) -> tuple[float, float]:
        """The part of its time for which the job occupies an uplink of its nodes, and one of its racks, if no
        other job uses the network."""
        per_message = self.messages / self.iteration_s()
        in_racks, across_racks = self.in_racks, self.across_racks
        return (
            per_message * (in_racks.node_uplink_s + across_racks.node_uplink_s),
            per_message * (in_racks.rack_uplink_s + across_racks.rack_uplink_s),
        )

    @cached_property
    def computing(self) -> float:
        """The part of its time in which it cannot send, if no other job uses the network."""
        return (1 - self.overlap) * self.compute_s / self.iteration_s()
