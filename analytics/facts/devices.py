"""Facts about nodes and devices."""

from __future__ import annotations

from gpu_flows.analytics.facts.base import Fact, PoolFact, in_table


@in_table("nodes")
class NodeSeen(PoolFact):
    """A node joined the pool, or is in another rack than before."""

    node: str
    rack: str


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
