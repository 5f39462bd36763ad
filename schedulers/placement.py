"""Which devices a job gets, once a policy has chosen the job.

The sharing rule says which devices are on offer at all. By default a device is offered only
when nobody holds it; under `shared` also one that is busy below a threshold, as long as the
memory its holders were promised leaves room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from gpu_flows.schedulers.cluster import Cluster, NodeState
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.policy import Options


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


def offered(node: NodeState, job: Job, options: SharingOptions) -> list[Device]:
    """The node's devices that the job may have now, at most as many as it asks for."""
    if options.sharing == "exclusive" and not node.idle:
        return []
    shared = options.sharing == "shared"
    found = []
    for state in node.devices:
        if (
            (state.utilization < options.utilization_threshold if shared else not state.holders)
            and state.fits(job)
            and job.accepts(state.device)
        ):
            found.append(state.device)
            if len(found) == job.gpus:
                break
    return found


def first_fit(
    job: Job, cluster: Cluster, options: SharingOptions, nodes: Iterable[NodeState] | None = None
) -> tuple[Device, ...]:
    """All the devices the job asks for on the first node that has them, or, if the job allows
    several nodes, gathered in node order. Empty when they are not there."""
    gathered: list[Device] = []
    for node in cluster if nodes is None else nodes:
        if options.sharing == "exclusive" and node.idle < job.gpus and not job.may_span_nodes:
            continue
        devices = offered(node, job, options)
        if len(devices) == job.gpus:
            return tuple(devices)
        gathered += devices
    if job.may_span_nodes and len(gathered) >= job.gpus:
        return tuple(gathered[: job.gpus])
    return ()
