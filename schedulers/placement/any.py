"""Any free devices, on any nodes."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import ALL_NODES, SharingOptions, candidate_nodes, gather_devices
from gpu_flows.schedulers.placement.first_fit import FirstFit


class Anywhere(FirstFit):
    """The first free devices on any nodes, for jobs that may span nodes.

    Simulators call this the count scheme. A job that may not span nodes is placed by first fit.
    """

    name = "any"

    def find_devices(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: NodeSet = ALL_NODES
    ) -> tuple[Device, ...]:
        if not job.may_span_nodes:
            return super().find_devices(job, gpus, cluster, sharing, among)
        if sharing.sharing == "exclusive" and cluster.idle < gpus:
            return ()
        nodes = candidate_nodes(job, 1, cluster, sharing, among)
        return gather_devices(job, gpus, cluster, sharing, cluster.nodes_in(nodes))
