"""Devices for a job within one node, within one rack, or anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import MOST_REQUESTS, Cluster
from gpu_flows.schedulers.model import Device, Job, Tier
from gpu_flows.schedulers.placement.base import ALL_NODES, SharingOptions, candidate_nodes
from gpu_flows.schedulers.placement.linked import prefer_linked
from gpu_flows.schedulers.placement.pack import (
    count_idle,
    find_on_few_nodes,
    find_on_fullest_node,
    racks_with,
)
from gpu_flows.schedulers.placement.topology import Topology

EXCLUSIVE = SharingOptions(utilization_threshold=90)  # policies that place by network give whole devices
_TOPOLOGY = Topology()


class NarrowestTiers:
    """The narrowest tier in which each job would fit if the cluster were empty."""

    def __init__(self) -> None:
        self._known: dict[object, Tier] = {}
        self._cluster: Cluster | None = None
        self._version = -1

    def of(self, job: Job, cluster: Cluster) -> Tier:
        if not job.may_span_nodes or job.gpus < 2:
            return Tier.NODE
        if cluster is not self._cluster or cluster.service_version != self._version:
            self._known.clear()
            self._cluster, self._version = cluster, cluster.service_version
        found = self._known.get(job.request)
        if found is None:
            if len(self._known) > MOST_REQUESTS:
                self._known.clear()
            found = self._known[job.request] = _find_narrowest(job, cluster)
        return found


def _find_narrowest(job: Job, cluster: Cluster) -> Tier:
    in_rack: dict[str, int] = {}
    for node in cluster:
        host = node.node
        if (host.cpus and job.cpus > host.cpus) or (host.ram_mb and job.ram_mb > host.ram_mb):
            continue
        usable = sum(1 for each in node.devices if each.healthy and job.accepts(each.device))
        if usable >= job.gpus:
            return Tier.NODE
        in_rack[host.rack] = in_rack.get(host.rack, 0) + usable
    return Tier.RACK if max(in_rack.values(), default=0) >= job.gpus else Tier.CLUSTER


def find_in_tier(job: Job, tier: Tier, cluster: Cluster, among: NodeSet = ALL_NODES) -> tuple[Device, ...]:
    """Return idle devices for the job that lie within such a tier: on the fullest node that has room, in the
    fullest rack on as few nodes as possible, or in as few racks as possible. None if there are none."""
    if cluster.idle < job.gpus:
        return ()
    return prefer_linked(job, _find_idle(job, tier, cluster, among), cluster, EXCLUSIVE)


def _find_idle(job: Job, tier: Tier, cluster: Cluster, among: NodeSet) -> tuple[Device, ...]:
    if tier == Tier.NODE:
        nodes = candidate_nodes(job, job.gpus, cluster, EXCLUSIVE, among)
        return find_on_fullest_node(job, job.gpus, cluster, EXCLUSIVE, nodes)
    nodes = candidate_nodes(job, 1, cluster, EXCLUSIVE, among)
    if tier == Tier.CLUSTER:
        enough = count_idle(nodes, cluster) >= job.gpus
        return _TOPOLOGY.find_across_nodes(job, job.gpus, cluster, EXCLUSIVE, nodes) if enough else ()
    for _, rack in racks_with(job.gpus, job, cluster, EXCLUSIVE, nodes):
        found = find_on_few_nodes(job, job.gpus, cluster, EXCLUSIVE, rack.nodes & nodes)
        if found:
            return found
    return ()


def find_up_to(job: Job, widest: Tier, cluster: Cluster) -> tuple[Device, ...]:
    """Return idle devices for the job in the narrowest tier that has them, up to the widest."""
    for tier in tiers_up_to(widest):
        found = find_in_tier(job, tier, cluster)
        if found:
            return found
    return ()


def tiers_up_to(widest: Tier) -> Iterator[Tier]:
    return (tier for tier in Tier if tier <= widest)


def tier_offered(job: Job, cluster: Cluster) -> Tier | None:
    """Return the tier wider than a node in which enough devices are idle for the job now, if there is one."""
    nodes = candidate_nodes(job, 1, cluster, EXCLUSIVE, ALL_NODES)
    if cluster.idle < job.gpus or count_idle(nodes, cluster) < job.gpus:
        return None
    return Tier.RACK if racks_with(job.gpus, job, cluster, EXCLUSIVE, nodes) else Tier.CLUSTER


def are_free(job: Job, devices: tuple[Device, ...], cluster: Cluster) -> bool:
    """Return whether the job can have all these devices for itself."""
    return (
        bool(devices)
        and not cluster.allocation_error(job, devices)
        and not any(cluster.devices[device.id].holders for device in devices)
    )
