"""Devices near each other: what links them counts before how full their nodes are."""

from __future__ import annotations

from itertools import chain

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions, gather_devices
from gpu_flows.schedulers.placement.pack import Pack, emptiest_first, from_few_nodes, racks_with


class Topology(Pack):
    """The nearest set of devices: one node; else, if the job may span nodes, one rack; else few racks.

    On one node it does as `pack` does. Beyond that the rack comes first: `pack` leaves a rack if
    that saves a node, this one does not. Of several racks that have the devices the fullest is
    taken, and within it as few nodes as can be; if none has them, the emptiest racks together.
    """

    name = "topology"

    def across(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
    ) -> tuple[Device, ...]:
        for _, rack in racks_with(gpus, job, cluster, sharing, nodes):
            found = from_few_nodes(job, gpus, cluster, sharing, rack.nodes & nodes)
            if found:
                return found
        racks = reversed(racks_with(1, job, cluster, sharing, nodes))
        rack_by_rack = (emptiest_first(rack.nodes & nodes, cluster) for _, rack in racks)
        return gather_devices(job, gpus, cluster, sharing, chain.from_iterable(rack_by_rack))
