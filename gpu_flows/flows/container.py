"""The `container` flow: a form for jobs in containers, in which Prefect need not be installed.

The worker reads the answers, runs the container itself, reports its state and streams its output. So the
body below never runs on a pool that can serve it.
"""

from __future__ import annotations

from typing import Annotated

from prefect import flow
from pydantic import Field

from gpu_flows.prefect_api.container_request import ContainerType


@flow(name="container")
def container(
    container_image: str,
    command: str = "",
    required_gpus: Annotated[int, Field(ge=1, le=4096)] = 1,
    type: ContainerType = "PyTorch",
    name: str = "",
) -> None:
    """Run a command in a container, on the devices this run is given.

    Args:
        container_image: Any image, for example: pytorch/pytorch:latest.
        command: What to run in it; empty means what the image runs by itself.
        required_gpus: Devices, all at the same time.
        type: How the command uses several devices: torchrun for Python programs, Horovod, or as it is.
        name: A name for the job.
    """
    raise RuntimeError(
        "this deployment describes a container, and only a worker of type `gpu` can run it. "
        "Put it on a `gpu` work pool."
    )
