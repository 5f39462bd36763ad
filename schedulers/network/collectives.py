"""The time of an all-reduce, by the latency of a step and the bandwidth of a member's link.

This is the usual cost model of collectives: a step that sends m bytes takes latency + m / bandwidth. The
formulas are those of Thakur, Rabenseifner and Gropp (2005) for the ring, and of Sanders, Speck and Träff
(2009) for the pair of binary trees that NCCL uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Collective = Literal["ring", "tree", "direct"]


@dataclass(frozen=True, slots=True)
class Link:
    """The way from a member to the others in one tier: from a device in its node, from a node in its rack,
    from a rack to the other racks."""

    bandwidth: float  # bytes per second
    latency_s: float  # of one step
    collective: Collective = "ring"
    capacity: float = 0.0  # bytes per second for all jobs together; 0: no more than for one

    def congested(self, factor: float) -> Link:
        return replace(
            self,
            bandwidth=self.bandwidth / factor,
            latency_s=self.latency_s * factor,
            capacity=self.capacity / factor,
        )


def allreduce_s(link: Link, members: int, size: float) -> float:
    """Return how long `members` take to add up `size` bytes that each of them has."""
    return latency_s(link, members) + bytes_sent(link, members, size) / link.bandwidth


def latency_s(link: Link, members: int) -> float:
    """Return the latency of all steps of an all-reduce."""
    if members < 2:
        return 0.0
    match link.collective:
        case "ring":  # once around to add up, once around to hand out the sums
            steps = 2 * (members - 1)
        case "tree":  # up to the root and down again
            steps = 2 * math.ceil(math.log2(members))
        case "direct":  # everybody sends to everybody at once
            steps = 2
    return steps * link.latency_s


def bytes_sent(link: Link, members: int, size: float) -> float:
    """Return how many bytes each member sends over its link in an all-reduce."""
    if members < 2:
        return 0.0
    if link.collective == "tree":  # a pipeline of two trees, which use both directions of a link
        return 2 * size
    return 2 * size * (members - 1) / members  # the least that is possible


def pipeline_s(stages: Sequence[float], messages: int) -> float:
    """Return how long messages take through stages that work at the same time, each on another message."""
    return sum(stages) + (messages - 1) * max(stages)
