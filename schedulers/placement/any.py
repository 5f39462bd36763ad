"""Devices anywhere: only their number counts."""

from __future__ import annotations

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import EVERYWHERE, SharingOptions, candidates, gathered
from gpu_flows.schedulers.placement.first_fit import FirstFit


class Anywhere(FirstFit):
    """The first free devices there are, on whatever nodes, for jobs that may span nodes.

    What simulators call the count scheme: a job that may not span nodes is placed by first fit.
    """

    name = "any"

    def find(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: int = EVERYWHERE
    ) -> tuple[Device, ...]:
        if not job.may_span_nodes:
            return super().find(job, gpus, cluster, sharing, among)
        if sharing.sharing == "exclusive" and cluster.idle < gpus:
            return ()
        nodes = candidates(job, 1, cluster, sharing, among)
        return gathered(job, gpus, cluster, sharing, cluster.those(nodes))
