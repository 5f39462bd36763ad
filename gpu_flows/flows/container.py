"""The `container` flow: a form for jobs in any container image, also one without Prefect.

The worker reads the parameters, runs the container itself, reports its state and streams its output. On a
`gpu` work pool the body of the flow therefore never runs.
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
    """Run a command in a container, on the devices of this run.

    Args:
        container_image: Any image, for example: pytorch/pytorch:latest.
        command: What to run in it; empty runs the image's own command.
        required_gpus: How many devices the job needs, all at the same time.
        type: How the command uses several devices: torchrun for Python programs, Horovod, or as it is.
        name: A name for the job.
    """
    raise RuntimeError(
        "this deployment describes a container, and only a worker of type `gpu` can run it. "
        "Put it on a `gpu` work pool."
    )
