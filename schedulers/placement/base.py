"""The interface of placements, and helpers to find available devices.

The sharing option states which devices are available at all. With `exclusive`, a device is
available if no job holds it. With `shared`, it is also available if its measured utilization is
below a threshold and the memory promised to its holders leaves enough. A placement then chooses
among the available devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field

from gpu_flows.schedulers.cluster.node_state import NodeSet, NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.policy import Options

ALL_NODES: NodeSet = -1


class SharingOptions(Options):
    """The options of every policy that supports exclusive and shared devices."""

    sharing: Literal["exclusive", "shared"] = "exclusive"
    """Whether a device serves one job at a time, or several whose memory fits together."""
    utilization_threshold: float = Field(90, gt=0, le=100, title="Utilization threshold (%)")
    """With shared devices, a device measured at or above this is not available."""

    @property
    def use_utilization(self) -> bool:
        return self.sharing == "shared"


class Placement(ABC):
    """Chooses devices by the state of the cluster, and at most by the jobs it has placed before."""

    name: ClassVar[str]
    uses_utilization: ClassVar[bool] = False  # also where devices are not shared

    @abstractmethod
    def find_devices(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: NodeSet = ALL_NODES
    ) -> tuple[Device, ...]:
        """Return `gpus` devices for the job on nodes of the set `among`, or no device at all."""


def candidate_nodes(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: NodeSet
) -> NodeSet:
    """Return all nodes that have `gpus` devices for the job. A few of them may have fewer."""
    eligible = cluster.eligible(job).nodes & among
    return eligible & cluster.with_idle(gpus if sharing.sharing == "exclusive" else 0)


def available_devices(
    node: NodeState, job: Job, gpus: int, sharing: SharingOptions, accepts_all: bool = False
) -> list[Device]:
    """Return at most `gpus` devices of the node on which the job may start now. `accepts_all` states
    that the job accepts every device of the node, which saves a check of each."""
    if (job.cpus or job.ram_mb) and not node.has_host_room(job):
        return []
    found: list[Device] = []
    exclusive = sharing.sharing == "exclusive"
    for state in node.devices:
        if exclusive:
            fits = not state.holders and state.healthy
        else:
            fits = state.utilization < sharing.utilization_threshold and state.fits(job)
        if fits and (accepts_all or job.accepts(state.device)):
            found.append(state.device)
            if len(found) == gpus:
                break
    return found


def find_on_one_node(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: Iterable[NodeState]
) -> tuple[Device, ...]:
    """Return all devices from the first of the nodes that has them, or no device."""
    accepts_all = cluster.eligible(job).accepts_all
    for node in nodes:
        devices = available_devices(node, job, gpus, sharing, bool(accepts_all & node.bit))
        if len(devices) == gpus:
            return tuple(devices)
    return ()


def gather_devices(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: Iterable[NodeState]
) -> tuple[Device, ...]:
    """Return all devices from as many of the nodes as needed, in their order, or no device."""
    accepts_all = cluster.eligible(job).accepts_all
    found: list[Device] = []
    for node in nodes:
        found += available_devices(node, job, gpus - len(found), sharing, bool(accepts_all & node.bit))
        if len(found) == gpus:
            return tuple(found)
    return ()
