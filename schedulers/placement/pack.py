"""Jobs close together: the fullest nodes first, and as few nodes per job as possible.

`best_fit`, `spread`, `topology` and `fragmentation` are variations of this placement: they use one
node if they can and several nodes if they must. For a job that needs idle devices, the node sets of
the cluster suffice; for a job that may share devices, the code looks at the nodes one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.cluster.node_state import NodeSet, NodeState, RackState
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
    """The fullest node that has room; else, if the job may span nodes, as few nodes as possible.

    This is consolidation as in Tiresias: whole nodes stay free for large jobs, and the processes of a
    job communicate over few links. Of several sets with equally few nodes, one within a single rack
    comes first. `best_fit` chooses a node in the same way but lets a job that spans nodes fill small
    gaps on many; `topology` puts the rack before the number of nodes; `spread` does the opposite.
    """

    name = "pack"

    def find_devices(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: NodeSet = ALL_NODES
    ) -> tuple[Device, ...]:
        nodes = candidate_nodes(job, gpus, cluster, sharing, among)
        found = self.find_within_node(job, gpus, cluster, sharing, nodes)
        if not found and job.may_span_nodes:
            nodes = candidate_nodes(job, 1, cluster, sharing, among)
            if may_share(job, sharing) or count_idle(nodes, cluster) >= gpus:
                found = self.find_across_nodes(job, gpus, cluster, sharing, nodes)
        return found

    def find_within_node(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        """Return all devices from one node of the set, or no device."""
        return find_on_fullest_node(job, gpus, cluster, sharing, nodes)

    def find_across_nodes(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
    ) -> tuple[Device, ...]:
        """Return all devices from several nodes of the set, or no device."""
        fewest = _count_fewest_nodes(gpus, nodes, cluster)
        # A rack can do with the fewest nodes only if one of them has at least the average number of devices.
        emptiest = cluster.with_idle(-(-gpus // fewest) if fewest else 0)
        for _, rack in racks_with(gpus, job, cluster, sharing, nodes):
            near = rack.nodes & nodes
            if near & emptiest and _count_fewest_nodes(gpus, near, cluster) == fewest:
                found = find_on_few_nodes(job, gpus, cluster, sharing, near)
                if found:
                    return found
        return find_on_few_nodes(job, gpus, cluster, sharing, nodes)


def may_share(job: Job, sharing: SharingOptions) -> bool:
    """Whether devices that other jobs hold could serve the job: it asks for a part, and sharing is on."""
    return job.memory_mb > 0 and sharing.sharing == "shared"


def find_on_fullest_node(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
) -> tuple[Device, ...]:
    """Return all devices from the node with the fewest idle devices that suffice, or no device."""
    if may_share(job, sharing):
        accepts_all = cluster.eligible(job).accepts_all
        for node in fullest_first(nodes, cluster):
            devices = fullest_devices(node, job, cluster, sharing, accepts_all)
            if len(devices) >= gpus:
                return tuple(devices[:gpus])
        return ()
    return find_on_one_node(job, gpus, cluster, sharing, fullest_first(nodes, cluster, gpus))


def fullest_first(nodes: NodeSet, cluster: Cluster, idle: int = 0) -> Iterator[NodeState]:
    """Yield the nodes of a set with at least `idle` idle devices, the fewest idle devices first."""
    for _, group in cluster.group_by_idle(nodes, idle):
        yield from cluster.nodes_in(group)


def emptiest_first(nodes: NodeSet, cluster: Cluster) -> Iterator[NodeState]:
    """Yield the nodes of a set, the most idle devices first."""
    for _, group in reversed(cluster.group_by_idle(nodes)):
        yield from cluster.nodes_in(group)


def fullest_devices(
    node: NodeState, job: Job, cluster: Cluster, sharing: SharingOptions, accepts_all: NodeSet
) -> list[Device]:
    """Return the available devices of the node, the least free memory first. The job accepts every
    device on the nodes of the set `accepts_all`."""
    devices = available_devices(node, job, len(node.devices), sharing, bool(accepts_all & node.bit))
    return sorted(devices, key=lambda device: cluster.devices[device.id].free_mb)


def find_on_few_nodes(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
) -> tuple[Device, ...]:
    """Return all devices from the emptiest nodes of the set, except for the rest of them, which comes
    from the fullest node that has it; or no device."""
    if may_share(job, sharing):
        return gather_devices(job, gpus, cluster, sharing, emptiest_first(nodes, cluster))
    accepts_all = cluster.eligible(job).accepts_all
    found: tuple[Device, ...] = ()
    not_found = 0  # the size of the rest that no node had
    for node in emptiest_first(nodes, cluster):
        missing = gpus - len(found)
        if missing <= node.idle and missing != not_found:
            rest = find_on_fullest_node(job, missing, cluster, sharing, nodes)
            if rest:
                return found + rest
            not_found = missing
        found += tuple(available_devices(node, job, missing, sharing, bool(accepts_all & node.bit)))
        if len(found) == gpus:
            return found
        nodes ^= node.bit
    return ()


def racks_with(
    gpus: int, job: Job, cluster: Cluster, sharing: SharingOptions, nodes: NodeSet
) -> list[tuple[int, RackState]]:
    """Return the racks that may have `gpus` devices on these nodes, as (idle devices, rack), the fullest
    first."""
    has_all_idle = cluster.with_idle(1) & ~nodes == 0  # then `rack.idle` needs no recount
    found = []
    for rack in cluster.racks.values():
        idle = rack.idle
        if idle >= gpus and not has_all_idle:
            idle = count_idle(rack.nodes & nodes, cluster)
        if idle >= gpus or may_share(job, sharing):
            found.append((idle, rack))
    return sorted(found, key=lambda pair: pair[0])


def count_idle(nodes: NodeSet, cluster: Cluster) -> int:
    """Return how many devices are idle on the nodes of a set."""
    return sum(idle * group.bit_count() for idle, group in cluster.group_by_idle(nodes, 1))


def _count_fewest_nodes(gpus: int, nodes: NodeSet, cluster: Cluster) -> int:
    """Return the smallest number of nodes of the set with `gpus` idle devices together; 0 if all of
    them have fewer."""
    taken = 0
    for idle, group in reversed(cluster.group_by_idle(nodes, 1)):
        count = group.bit_count()
        if idle * count >= gpus:
            return taken + -(-gpus // idle)
        gpus -= idle * count
        taken += count
    return 0
