"""All placements by name, and the options with which users choose one."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from gpu_flows.common.discovery import classes_in
from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import ALL_NODES, Placement, SharingOptions
from gpu_flows.schedulers.placement.linked import prefer_linked

_classes = classes_in("gpu_flows.schedulers.placement", Placement)
PLACEMENTS: dict[str, Placement] = dict(sorted((placement.name, placement()) for placement in _classes))


def _check_name(name: str) -> str:
    if name not in PLACEMENTS:
        raise ValueError(f"there is no placement {name!r}; there are {', '.join(PLACEMENTS)}")
    return name


class PlacementOptions(SharingOptions):
    """The options of every policy that leaves the choice of devices to a placement."""

    placement: Annotated[str, AfterValidator(_check_name)] = Field(
        "first_fit", json_schema_extra={"enum": list(PLACEMENTS)}
    )
    """How devices are chosen for the job that starts next."""

    @property
    def use_utilization(self) -> bool:
        return self.sharing == "shared" or PLACEMENTS[self.placement].uses_utilization

    def place(
        self, job: Job, cluster: Cluster, gpus: int | None = None, among: NodeSet = ALL_NODES
    ) -> tuple[Device, ...]:
        """Return `gpus` devices for the job (by default as many as it asks for), or no device. The placement
        chooses the nodes, and idle devices of a node are taken so that they are linked best."""
        devices = PLACEMENTS[self.placement].find_devices(
            job, job.gpus if gpus is None else gpus, cluster, self, among
        )
        return prefer_linked(job, devices, cluster, self)

    def are_available(self, job: Job, devices: tuple[Device, ...], cluster: Cluster) -> bool:
        """Whether the job may start on exactly these devices now."""
        if cluster.allocation_error(job, devices):
            return False
        held = [state for device in devices if (state := cluster.devices[device.id]).holders]
        if self.sharing == "exclusive":
            return not held
        return all(state.utilization < self.utilization_threshold for state in held)
