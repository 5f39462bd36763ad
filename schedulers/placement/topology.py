"""Devices near each other: one node, else one rack."""

from __future__ import annotations

from itertools import chain

from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions, gather_devices
from gpu_flows.schedulers.placement.pack import Pack, emptiest_first, find_on_few_nodes, racks_with


class Topology(Pack):
    """One node; else, if the job may span nodes, one rack; else as few racks as possible.

    A job that fits on one node gets the node that `pack` chooses. For other jobs the rack comes
    first: `pack` uses several racks if that saves a node, `topology` does not. Of several racks with
    enough devices it takes the fullest, and within it as few nodes as possible. If no rack has
    enough, it takes devices from the emptiest racks.
    """

    name = "topology"

    def find_across_nodes(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        for _, rack in racks_with(gpus, job, cluster, sharing, nodes):
            found = find_on_few_nodes(job, gpus, cluster, sharing, rack.nodes & nodes)
            if found:
                return found
        racks = reversed(racks_with(1, job, cluster, sharing, nodes))
        rack_by_rack = (emptiest_first(rack.nodes & nodes, cluster) for _, rack in racks)
        return gather_devices(job, gpus, cluster, sharing, chain.from_iterable(rack_by_rack))
