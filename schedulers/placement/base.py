"""What a placement is: which devices a job gets, once a policy has chosen the job.

The sharing rule says which devices are on offer at all. By default a device is offered only
when nobody holds it; under `shared` also one that is busy below a threshold, as long as the
memory its holders were promised leaves room. A placement then chooses among the offers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field

from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.policy import Options

ALL_NODES = -1  # the set of all nodes


class SharingOptions(Options):
    """What every policy with exclusive or shared devices lets people choose."""

    sharing: Literal["exclusive", "shared"] = Field(
        default="exclusive",
        title="Sharing",
        description="Whether a device serves one job at a time, or several whose memory fits together.",
    )
    utilization_threshold: float = Field(
        default=90,
        gt=0,
        le=100,
        title="Utilization threshold (%)",
        description="With shared devices: a device measured at or above this is not offered.",
    )


class Placement(ABC):
    """Finds the devices. Knows nothing but the cluster, and at most what it learned of earlier jobs."""

    name: ClassVar[str]

    @abstractmethod
    def find_devices(
        self, job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: int = ALL_NODES
    ) -> tuple[Device, ...]:
        """So many devices for the job on nodes of the set `among`, or none at all."""

    @classmethod
    def rule(cls) -> str:
        return (cls.__doc__ or "").strip().split("\n")[0]


def candidate_nodes(job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, among: int) -> int:
    """The nodes that may have so many devices for the job: surely all that have, perhaps a few more."""
    able = cluster.eligible(job).nodes & among
    return able & cluster.with_idle(gpus if sharing.sharing == "exclusive" else 0)


def available_devices(
    node: NodeState, job: Job, gpus: int, sharing: SharingOptions, pure: bool = False
) -> list[Device]:
    """The node's devices that the job may have now, at most so many. `pure` promises that the job
    accepts every device of the node."""
    if (job.cpus or job.ram_mb) and not node.has_host_room(job):
        return []
    found: list[Device] = []
    exclusive = sharing.sharing == "exclusive"
    for state in node.devices:
        if exclusive:
            fits = not state.holders and state.healthy
        else:
            fits = state.utilization < sharing.utilization_threshold and state.fits(job)
        if fits and (pure or job.accepts(state.device)):
            found.append(state.device)
            if len(found) == gpus:
                break
    return found


def find_on_one_node(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: Iterable[NodeState]
) -> tuple[Device, ...]:
    """All devices on the first of these nodes that has them."""
    pure = cluster.eligible(job).accepts_all
    for node in nodes:
        devices = available_devices(node, job, gpus, sharing, bool(pure & node.bit))
        if len(devices) == gpus:
            return tuple(devices)
    return ()


def gather_devices(
    job: Job, gpus: int, cluster: Cluster, sharing: SharingOptions, nodes: Iterable[NodeState]
) -> tuple[Device, ...]:
    """All devices, from as many of these nodes as it takes, in their order."""
    pure = cluster.eligible(job).accepts_all
    found: list[Device] = []
    for node in nodes:
        found += available_devices(node, job, gpus - len(found), sharing, bool(pure & node.bit))
        if len(found) == gpus:
            return tuple(found)
    return ()
