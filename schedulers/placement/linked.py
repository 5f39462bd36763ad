"""The step that follows every choice of devices: on the same nodes, idle devices that are linked better.

A placement decides on which nodes a job starts, and which devices it shares with others. Which of the idle
devices of a node it gets makes no difference to the placement, so all of them use this step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpu_flows.schedulers.cluster.bits import bit_positions
from gpu_flows.schedulers.cluster.node_state import DeviceState, NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions


def prefer_linked(
    job: Job, devices: tuple[Device, ...], cluster: Cluster, sharing: SharingOptions
) -> tuple[Device, ...]:
    """Return as many devices for the job on the same nodes, with other idle ones where those are linked
    better."""
    if not cluster.linked:
        return devices
    threshold = sharing.utilization_threshold if sharing.sharing == "shared" else float("inf")

    def is_available(state: DeviceState) -> bool:
        idle = not state.holders and state.healthy and state.utilization < threshold
        return idle and job.accepts(state.device)

    nodes = [cluster.nodes[name] for name in {device.node for device in devices}]
    available = {
        state.device.id for node in nodes if node.links for state in node.devices if is_available(state)
    }
    return choose_linked(devices, available, cluster)


def choose_linked(
    devices: Sequence[Device], available: Collection[str], cluster: Cluster
) -> tuple[Device, ...]:
    """Return the devices, with those whose ids are available replaced by available ones of the same node
    that are linked better. It makes no other difference which of the available devices the job gets."""
    if not cluster.linked:
        return tuple(devices)
    by_node: dict[str, list[Device]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device)
    found: list[Device] = []
    for name, chosen in by_node.items():
        found += _choose_on_node(cluster.nodes[name], chosen, available)
    return tuple(found)


def _choose_on_node(node: NodeState, chosen: list[Device], available: Collection[str]) -> list[Device]:
    replaced = [device for device in chosen if device.id in available]
    kinds = {(device.model, device.memory_mb) for device in replaced}
    if node.links is None or len(kinds) != 1:  # devices of several models do not replace each other
        return chosen
    kept = {device.id for device in chosen} - {device.id for device in replaced}
    offered = beside = 0
    for position, state in enumerate(node.devices):
        device = state.device
        if device.id in available and (device.model, device.memory_mb) in kinds:
            offered |= 1 << position
        elif device.id in kept:
            beside |= 1 << position
    best = node.links.choose(offered, len(replaced), beside)
    return [node.devices[position].device for position in bit_positions(best | beside)]
