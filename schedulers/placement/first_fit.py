"""The first node with room, in declared order."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import (
    ALL_NODES,
    Placement,
    SharingOptions,
    candidate_nodes,
    find_on_one_node,
    gather_devices,
)


class FirstFit(Placement):
    """The first node that has all devices; else, if the job may span nodes, the first free devices."""

    name = "first_fit"

    def find_devices(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: NodeSet = ALL_NODES
    ) -> tuple[Device, ...]:
        nodes = candidate_nodes(job, gpus, cluster, sharing, among)
        found = find_on_one_node(job, gpus, cluster, sharing, cluster.nodes_in(nodes))
        if not found and job.may_span_nodes:
            nodes = candidate_nodes(job, 1, cluster, sharing, among)
            found = gather_devices(job, gpus, cluster, sharing, cluster.nodes_in(nodes))
        return found
