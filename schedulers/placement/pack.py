"""Jobs close together: full nodes fill up first, and no job lies on more nodes than it has to.

Its neighbours are variations: one node if it can be, several if it must. Where a job needs idle
devices the sets of the cluster answer at once; where it may share devices that are in use, nodes
have to be looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.cluster.node_state import NodeState, RackState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import (
    ALL_NODES,
    Placement,
    SharingOptions,
    available_devices,
    candidate_nodes,
    find_on_one_node,
    gather_devices,
)


class Pack(Placement):
    """The fullest node that has room; else, if the job may span nodes, the fewest nodes there are.

    Consolidation, as in Tiresias: whole nodes stay free for big jobs, and the workers of one job
    talk over few links. Of several sets that are as few, one within a single rack comes first.
    `best_fit` chooses a node likewise but lets a job that spans nodes fill small gaps on many;
    `topology` puts the rack before the number of nodes; `spread` does the opposite.
    """

    name = "pack"

    def find_devices(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: int = ALL_NODES
    ) -> tuple[Device, ...]:
        found = self.within(job, gpus, cluster, sharing, candidate_nodes(job, gpus, cluster, sharing, among))
        if not found and job.may_span_nodes:
            nodes = candidate_nodes(job, 1, cluster, sharing, among)
            if may_share(job, sharing) or idle_on(nodes, cluster) >= gpus:
                found = self.across(job, gpus, cluster, sharing, nodes)
        return found

    def within(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
    ) -> tuple[Device, ...]:
        """All devices on one node of the set, or none."""
        return on_fullest_node(job, gpus, cluster, sharing, nodes)

    def across(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
    ) -> tuple[Device, ...]:
        """All devices from several nodes of the set, or none."""
        fewest = _fewest(gpus, nodes, cluster)
        empty = cluster.with_idle(-(-gpus // fewest) if fewest else 0)  # no rack is as few without these
        for _, rack in racks_with(gpus, job, cluster, sharing, nodes):
            near = rack.nodes & nodes
            if near & empty and _fewest(gpus, near, cluster) == fewest:
                found = from_few_nodes(job, gpus, cluster, sharing, near)
                if found:
                    return found
        return from_few_nodes(job, gpus, cluster, sharing, nodes)


def may_share(job: Job, sharing: SharingOptions) -> bool:
    """Whether devices in use could serve the job too: it asks for a part, and sharing is on."""
    return job.memory_mb > 0 and sharing.sharing == "shared"


def on_fullest_node(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
) -> tuple[Device, ...]:
    """All devices on the node with the fewest idle ones that has them."""
    if may_share(job, sharing):
        pure = cluster.eligible(job).accepts_all
        for node in fullest_first(nodes, cluster):
            devices = fullest_devices(node, job, cluster, sharing, pure)
            if len(devices) >= gpus:
                return tuple(devices[:gpus])
        return ()
    return find_on_one_node(job, gpus, cluster, sharing, fullest_first(nodes, cluster, gpus))


def fullest_first(nodes: int, cluster: Cluster, idle: int = 0) -> Iterator[NodeState]:
    """The nodes of a set, those with the fewest idle devices first, from so many upward."""
    for _, alike in cluster.group_by_idle(nodes, idle):
        yield from cluster.nodes_in(alike)


def emptiest_first(nodes: int, cluster: Cluster) -> Iterator[NodeState]:
    """The nodes of a set, those with the most idle devices first."""
    for _, alike in reversed(cluster.group_by_idle(nodes)):
        yield from cluster.nodes_in(alike)


def fullest_devices(
    node: NodeState, job: Job, cluster: Cluster, sharing: SharingOptions, pure: int
) -> list[Device]:
    """The node's devices that the job may have, those with the least free memory first. On the nodes
    of the set `pure` it accepts every device."""
    devices = available_devices(node, job, len(node.devices), sharing, bool(pure & node.bit))
    return sorted(devices, key=lambda device: cluster.devices[device.id].free_mb)


def from_few_nodes(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: int
) -> tuple[Device, ...]:
    """All devices from the emptiest nodes of the set, the remainder from the fullest that has it."""
    if may_share(job, sharing):
        return gather_devices(job, gpus, cluster, sharing, emptiest_first(nodes, cluster))
    pure = cluster.eligible(job).accepts_all
    found: tuple[Device, ...] = ()
    sought = 0  # the remainder that was looked for last, in vain
    for node in emptiest_first(nodes, cluster):
        missing = gpus - len(found)
        if missing <= node.idle and missing != sought:
            remainder = on_fullest_node(job, missing, cluster, sharing, nodes)
            if remainder:
                return found + remainder
            sought = missing
        found += tuple(available_devices(node, job, missing, sharing, bool(pure & node.bit)))
        if len(found) == gpus:
            return found
        nodes ^= node.bit
    return ()


def racks_with(
    gpus: int, job: Job, cluster: Cluster, sharing: SharingOptions, nodes: int
) -> list[tuple[int, RackState]]:
    """The racks that may have so many devices on these nodes, with how many idle; the fullest first."""
    all_idle = cluster.with_idle(1) & ~nodes == 0
    found = []
    for rack in cluster.racks.values():
        idle = rack.idle
        if idle >= gpus and not all_idle:
            idle = idle_on(rack.nodes & nodes, cluster)
        if idle >= gpus or may_share(job, sharing):
            found.append((idle, rack))
    return sorted(found, key=lambda each: each[0])


def idle_on(nodes: int, cluster: Cluster) -> int:
    """How many devices are idle on the nodes of a set."""
    return sum(idle * alike.bit_count() for idle, alike in cluster.group_by_idle(nodes, 1))


def _fewest(gpus: int, nodes: int, cluster: Cluster) -> int:
    """How many nodes of the set it takes to have so many idle devices; 0 if they have not."""
    taken = 0
    for idle, alike in reversed(cluster.group_by_idle(nodes, 1)):
        count = alike.bit_count()
        if idle * count >= gpus:
            return taken + -(-gpus // idle)
        gpus -= idle * count
        taken += count
    return 0
