"""Facts about nodes and devices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpu_flows.analytics.facts.base import Fact, PoolFact, in_table

if TYPE_CHECKING:
    from gpu_flows.schedulers.model import Node


@in_table("nodes")
class NodeSeen(PoolFact):
    """A node joined the pool, or has another rack, place or other resources than before."""

    node: str
    rack: str
    cpus: float = 0.0
    """0: not counted."""
    ram_mb: int = 0
    """0: not counted."""
    links: str = "[]"
    """A JSON list: how closely which of its devices are linked."""
    position: int = 0
    """Its place among the nodes of the pool, which decides between equal choices."""

    @classmethod
    def of(cls, node: Node, position: int, pool: str, time: float) -> NodeSeen:
        """Return the fact that this node is one of the pool."""
        links = json.dumps(node.links)
        return cls(time, pool, node.name, node.rack, node.cpus, node.ram_mb, links, position)


@in_table("devices")
class DeviceSeen(Fact):
    """A device joined the pool."""

    device_id: str
    pool: str
    node: str
    index: int
    model: str
    memory_mb: int
    time: float


@in_table("device_events")
class DeviceEvent(Fact):
    """The health of a device changed."""

    time: float
    device_id: str
    node: str
    kind: str
    """healthy, sick or gone."""
    detail: str = ""


@in_table("samples")
class Sampled(Fact):
    """One reading of one device. A value is None if the device does not report it."""

    time: float
    device_id: str
    utilization: float | None
    """0 to 100."""
    memory_used_mb: float | None
    power_w: float | None
    temperature_c: float | None
