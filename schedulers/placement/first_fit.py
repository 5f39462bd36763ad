"""The first node with room, in declared order."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import (
    EVERYWHERE,
    Placement,
    SharingOptions,
    candidates,
    gathered,
    on_one_node,
)


class FirstFit(Placement):
    """The first node that has all devices; else, if the job may span nodes, gathered in node order."""

    name = "first_fit"

    def find(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: int = EVERYWHERE
    ) -> tuple[Device, ...]:
        nodes = candidates(job, gpus, cluster, sharing, among)
        found = on_one_node(job, gpus, cluster, sharing, cluster.those(nodes))
        if not found and job.may_span_nodes:
            nodes = candidates(job, 1, cluster, sharing, among)
            found = gathered(job, gpus, cluster, sharing, cluster.those(nodes))
        return found
