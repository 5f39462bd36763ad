"""How the devices of a job lie in the cluster: how many on each node, and which nodes are in one rack."""

from __future__ import annotations

from collections.abc import Callable

from gpu_flows.schedulers.model import Job, Tier

Shape = tuple[tuple[int, ...], ...]
"""For each rack, the number of devices on each of its nodes; racks and nodes are sorted, so that equal shapes
cost the same. ((4, 4), (8,)) has two racks, two nodes in the one and one in the other."""

NetworkSlowdown = Callable[[Job, Shape], float]
"""How many times as long a job takes on devices of this shape as it takes on one node."""


def tier_of(shape: Shape) -> Tier:
    if len(shape) > 1:
        return Tier.CLUSTER
    return Tier.RACK if shape and len(shape[0]) > 1 else Tier.NODE


def no_slowdown(job: Job, shape: Shape) -> float:
    """The slowdown of jobs that do not communicate."""
    return 1.0
