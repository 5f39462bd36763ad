"""The state of one device, one node and one rack."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.device_links import device_links
from gpu_flows.schedulers.model import Device, Job, Node

ABSENT = "not part of the cluster"  # the detail of a device that a job holds but that is not declared

NodeSet = int  # bit n is set if the n-th declared node belongs to the set


class DeviceState:
    """The jobs that hold a device, its health, and its last measured utilization."""

    __slots__ = ("detail", "device", "exclusive", "free_mb", "healthy", "holders", "utilization")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.holders: dict[str, int] = {}  # job id -> MiB promised to it
        self.exclusive = False  # the holder asked for the whole device
        self.free_mb = device.memory_mb
        self.healthy = True
        self.detail = ""  # why the device is unhealthy
        self.utilization = 0.0

    def has_room(self, job: Job) -> bool:
        """Whether the memory that the job asks for is still free, healthy device or not."""
        return not self.holders or (not self.exclusive and 0 < job.memory_mb <= self.free_mb)

    def fits(self, job: Job) -> bool:
        """Whether the job may start on this device now."""
        return self.healthy and self.has_room(job)


class RackState:
    """The nodes of a rack, and how many of their devices are idle on nodes that are up."""

    __slots__ = ("idle", "name", "nodes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: NodeSet = 0
        self.idle = 0


class NodeState:
    """The devices of a node in index order, and how many of them are healthy and unheld."""

    __slots__ = (
        "bit",
        "changed_at",
        "detail",
        "devices",
        "free_cpus",
        "free_ram_mb",
        "idle",
        "links",
        "name",
        "node",
        "rack",
        "up",
    )

    def __init__(self, node: Node, devices: list[DeviceState], bit: NodeSet, rack: RackState) -> None:
        self.node = node
        self.name = node.name
        self.devices = devices
        self.bit = bit
        self.rack = rack
        self.links = device_links(node)  # None: it does not matter which of the devices a job gets
        self.changed_at = 0  # the cluster's version when a device last changed its holders or health
        self.up = True
        self.detail = ""  # why the node is down
        self.idle = sum(1 for state in devices if state.healthy and not state.holders)
        self.free_cpus = node.cpus
        self.free_ram_mb = node.ram_mb

    def has_host_room(self, job: Job) -> bool:
        """Whether enough processors and host memory are free, where the node declares them."""
        node = self.node
        return not (
            (node.cpus and job.cpus > self.free_cpus + 1e-9)
            or (node.ram_mb and job.ram_mb > self.free_ram_mb)
        )
