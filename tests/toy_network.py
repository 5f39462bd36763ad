"""A network of which every figure can be computed by hand."""

from __future__ import annotations

import math

from gpu_flows.schedulers.network.collectives import Link
from gpu_flows.schedulers.network.models import Models, TrainedModel
from gpu_flows.schedulers.network.network import Network, Uneven

FREE = Link(math.inf, 0.0)


def make_network(
    rack: Link, cluster: Link = FREE, messages: int = 1, overlap: float = 0.0, uneven: Uneven = "fullest"
) -> Network:
    """A network on which every job computes for a second and sends a gigabyte, at no cost in a node."""
    model = TrainedModel("toy", 1e9, messages, 1.0, overlap)
    return Network("toy", FREE, rack, cluster, Models({"toy": model}, {}, "toy"), uneven)
