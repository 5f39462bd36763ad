"""Jobs far apart: every job gets the emptiest node."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.node_state import NodeSet, NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions, find_on_one_node, gather_devices
from gpu_flows.schedulers.placement.pack import Pack, emptiest_first, fullest_devices, may_share


class Spread(Pack):
    """The node with the most idle devices; on shared devices, those with the most free memory.

    The opposite of `pack`. Jobs interfere least (memory bandwidth, processors, heat), and a node that
    fails stops few of them; but large jobs wait longer because no node stays empty for long. A job
    that fits on one node still runs on one node.
    """

    name = "spread"

    def find_within_node(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        if not may_share(job, sharing):
            return find_on_one_node(job, gpus, cluster, sharing, emptiest_first(nodes, cluster))
        accepts_all = cluster.eligible(job).accepts_all
        for _, group in reversed(cluster.group_by_idle(nodes)):
            for node in sorted(cluster.nodes_in(group), key=_free_mb, reverse=True):
                devices = fullest_devices(node, job, cluster, sharing, accepts_all)
                if len(devices) >= gpus:
                    devices.sort(key=lambda device: cluster.devices[device.id].free_mb, reverse=True)
                    return tuple(devices[:gpus])
        return ()

    def find_across_nodes(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        return gather_devices(job, gpus, cluster, sharing, emptiest_first(nodes, cluster))


def _free_mb(node: NodeState) -> int:
    return sum(state.free_mb for state in node.devices)
