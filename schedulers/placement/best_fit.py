"""The placement that leaves the smallest rest: it fills gaps before it breaks up idle nodes."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions, gather_devices
from gpu_flows.schedulers.placement.pack import Pack, fullest_devices, fullest_first, may_share


class BestFit(Pack):
    """The node with the fewest idle devices; on shared devices, the device with the least free memory.

    On whole devices, a job that fits on one node gets the node that `pack` chooses. A job that has
    to span nodes gets the last idle devices of many nodes, while `pack` takes few nodes. On shared
    devices it compares all devices of the cluster and takes the one with the least sufficient
    memory, while `pack` chooses a node first. Ties go to the node with the least free memory.
    """

    name = "best_fit"

    def find_within_node(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        if not may_share(job, sharing):
            return super().find_within_node(job, gpus, cluster, sharing, nodes)
        best: tuple[Device, ...] = ()
        smallest = (0, 0)
        accepts_all = cluster.eligible(job).accepts_all
        for node in cluster.nodes_in(nodes):
            devices = fullest_devices(node, job, cluster, sharing, accepts_all)[:gpus]
            if len(devices) == gpus:
                free = sum(cluster.devices[device.id].free_mb for device in devices)
                leftover = (free, sum(state.free_mb for state in node.devices))
                if not best or leftover < smallest:
                    best, smallest = tuple(devices), leftover
        return best

    def find_across_nodes(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        return gather_devices(job, gpus, cluster, sharing, fullest_first(nodes, cluster))
