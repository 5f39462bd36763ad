"""Jobs far apart: every job gets as much of a node to itself as there is."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions, find_on_one_node, gather_devices
from gpu_flows.schedulers.placement.pack import Pack, emptiest_first, fullest_devices, may_share


class Spread(Pack):
    """The node with the most idle devices; on shared devices those with the most free memory.

    The opposite of `pack`: jobs disturb each other least (memory bandwidth, processors, heat) and a
    broken node takes few of them along; but big jobs wait, for no node stays empty for long. A job
    that fits on one node still stays on one.
    """

    name = "spread"

    def within(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
    ) -> tuple[Device, ...]:
        if not may_share(job, sharing):
            return find_on_one_node(job, gpus, cluster, sharing, emptiest_first(nodes, cluster))
        pure = cluster.eligible(job).accepts_all
        for _, alike in reversed(cluster.group_by_idle(nodes)):
            for node in sorted(cluster.nodes_in(alike), key=_free_mb, reverse=True):
                devices = fullest_devices(node, job, cluster, sharing, pure)
                if len(devices) >= gpus:
                    devices.sort(key=lambda device: cluster.devices[device.id].free_mb, reverse=True)
                    return tuple(devices[:gpus])
        return ()

    def across(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
    ) -> tuple[Device, ...]:
        return gather_devices(job, gpus, cluster, sharing, emptiest_first(nodes, cluster))


def _free_mb(node: NodeState) -> int:
    return sum(state.free_mb for state in node.devices)
