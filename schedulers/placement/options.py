"""Every placement by name, and the options by which people choose one."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from gpu_flows.common.discovery import classes_in
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import ALL_NODES, Placement, SharingOptions

_classes = classes_in("gpu_flows.schedulers.placement", Placement)
PLACEMENTS: dict[str, Placement] = dict(sorted((each.name, each()) for each in _classes))


def _known(name: str) -> str:
    if name not in PLACEMENTS:
        raise ValueError(f"there is no placement {name!r}; there are {', '.join(PLACEMENTS)}")
    return name


class PlacementOptions(SharingOptions):
    """What every policy that leaves the choice of devices to a placement lets people choose."""

    placement: Annotated[str, AfterValidator(_known)] = Field(
        default="first_fit",
        title="Placement",
        description="How devices are chosen for a job whose turn it is.",
        json_schema_extra={"enum": list(PLACEMENTS)},
    )

    def place(
        self, job: Job, cluster: Cluster, gpus: int | None = None, among: int = ALL_NODES
    ) -> tuple[Device, ...]:
        """The devices for the job, as many as it asks for unless told otherwise; none if they are
        not there."""
        return PLACEMENTS[self.placement].find_devices(
            job, job.gpus if gpus is None else gpus, cluster, self, among
        )

    def are_available(self, job: Job, devices: tuple[Device, ...], cluster: Cluster) -> bool:
        """Whether exactly these devices are on offer to the job."""
        if cluster.allocation_error(job, devices):
            return False
        return self.sharing == "shared" or not any(cluster.devices[device.id].holders for device in devices)
