"""The smallest leftover: gaps are filled before anything whole is broken."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions, gather_devices
from gpu_flows.schedulers.placement.pack import Pack, fullest_devices, fullest_first, may_share


class BestFit(Pack):
    """Where the least is left over: the node with the fewest idle devices, the device with the least room.

    On whole devices a job that fits on one node goes where `pack` puts it. One that has to span
    nodes gets the remnants of many, where `pack` takes few. On shared devices all devices of the
    cluster are compared, and the one whose free memory is least but sufficient wins, where `pack`
    looks for a node first; of equals, the one on the node with the least free memory.
    """

    name = "best_fit"

    def within(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
    ) -> tuple[Device, ...]:
        if not may_share(job, sharing):
            return super().within(job, gpus, cluster, sharing, nodes)
        best: tuple[Device, ...] = ()
        least = (0, 0)
        pure = cluster.eligible(job).accepts_all
        for node in cluster.nodes_in(nodes):
            devices = fullest_devices(node, job, cluster, sharing, pure)[:gpus]
            if len(devices) == gpus:
                free = sum(cluster.devices[device.id].free_mb for device in devices)
                leftover = (free, sum(state.free_mb for state in node.devices))
                if not best or leftover < least:
                    best, least = tuple(devices), leftover
        return best

    def across(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
    ) -> tuple[Device, ...]:
        return gather_devices(job, gpus, cluster, sharing, fullest_first(nodes, cluster))
