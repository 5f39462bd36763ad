"""What a job may ask for: the form of the work pool, and what a run's answers become.

Every field here is a field of the pool's form in the Prefect UI, a job variable of a deployment
and a job variable of a single run, in rising order of precedence. Plain types with a sentinel
default (0 or empty for "none") are used because the UI draws them as simple boxes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal

from prefect.workers.base import BaseJobConfiguration, BaseVariables
from pydantic import BaseModel, Field, ValidationError

from gpu_flows.common.validation import explain
from gpu_flows.prefect_private import QuickEnvironment
from gpu_flows.runtimes.base import Pull
from gpu_flows.runtimes.docker.command_launchers import Launcher
from gpu_flows.schedulers.model import Job

MOST_GPUS = 4096
PRIORITY_CLASSES = {"low": -100, "normal": 0, "high": 100, "urgent": 1000}


class Ask(BaseModel):
    """The part of the form that the scheduler looks at."""

    gpus: int = Field(
        default=1,
        ge=1,
        le=MOST_GPUS,
        title="GPUs",
        description="How many devices the job needs, all at the same time.",
    )
    min_gpus: int = Field(
        default=0,
        ge=0,
        le=MOST_GPUS,
        title="Fewest GPUs",
        description="An elastic job runs on so few devices if it has to. 0 means as many as it asks for.",
    )
    max_gpus: int = Field(
        default=0,
        ge=0,
        le=MOST_GPUS,
        title="Most GPUs",
        description="An elastic job has a use for so many devices. 0 means as many as it asks for.",
    )
    gpu_memory_gb: float = Field(
        default=0,
        ge=0,
        le=4096,
        title="GPU memory (GB per device)",
        description=(
            "Memory the job needs on each device. A job that states it may share a device, if the "
            "policy allows sharing, and is never promised memory that others hold. 0 asks for whole devices."
        ),
    )
    gpu_models: list[str] = Field(
        default_factory=list,
        title="GPU models",
        description="Accept only these models, for example 'A100' or '*1080*'. Empty accepts any.",
    )
    nodes: list[str] = Field(
        default_factory=list,
        title="Nodes",
        description="Accept only these nodes, for example 'node-1' or 'gpu*'. Empty accepts any.",
    )
    may_span_nodes: bool = Field(
        default=False,
        title="May span nodes",
        description="Whether the devices may be gathered from several nodes when no single node has them.",
    )
    coordinator: bool = Field(
        default=False,
        title="Coordinator",
        description="The job only submits and watches other runs: it starts at once and holds no device.",
    )
    priority: int = Field(
        default=0,
        ge=-1000,
        le=1000,
        title="Priority",
        description="Higher is more urgent, for policies that look at it.",
    )
    priority_class: Literal["low", "normal", "high", "urgent"] = Field(
        default="normal",
        title="Priority class",
        description="Adds -100, 0, 100 or 1000 to the priority: a name for how urgent it is.",
    )
    preemptible: bool = Field(
        default=True,
        title="Preemptible",
        description="Whether the job may be stopped for others, and go on later from its checkpoint.",
    )
    expected_seconds: float = Field(
        default=0,
        ge=0,
        title="Expected duration (seconds)",
        description="How long the job will run, for policies that look at it. 0 means unknown.",
    )
    deadline_seconds: float = Field(
        default=0,
        ge=0,
        title="Deadline (seconds after it was due)",
        description="By when the job should be done, for policies that look at it. 0 means none.",
    )


class ContainerAsk(BaseModel):
    """The part of the form that is about a container."""

    image: str = Field(
        default="",
        title="Container image",
        description=(
            "Image to run the job in, on a pool whose runtime is Docker. With a command, any image; without "
            "one, an image that has Prefect and the flow in it. Empty runs the job as a process."
        ),
    )
    pull: Pull = Field(
        default="if-not-present",
        title="Pull the image",
        description="Whether the image is pulled from its registry: if the host lacks it, always, or never.",
    )
    launcher: Launcher = Field(
        default="auto",
        title="Launcher",
        description=(
            "How a command in a container uses several devices: 'auto' gives Python programs to torchrun, "
            "'horovodrun' needs an image with Horovod, 'none' runs the command as it is."
        ),
    )
    mounts: list[str] = Field(
        default_factory=list,
        title="Mounts",
        description="Folders of the host, as SOURCE:TARGET or SOURCE:TARGET:ro, where the pool allows them.",
    )
    shm_gb: float = Field(
        default=1,
        ge=0,
        le=256,
        title="Shared memory (GB)",
        description="Size of /dev/shm in the container, through which data loaders and NCCL talk.",
    )
    memory_gb: float = Field(
        default=0,
        ge=0,
        le=65536,
        title="Memory limit (GB)",
        description="Most main memory of the container; 0 means the pool's own limit.",
    )
    cpus: float = Field(
        default=0,
        ge=0,
        le=4096,
        title="CPU limit",
        description="Most processors of the container; 0 means the pool's own limit.",
    )
    registry_credentials: str = Field(
        default="",
        title="Registry credentials",
        description="Name of a Docker Registry Credentials block, for an image in a private registry.",
    )


class GpuJobVariables(BaseVariables, ContainerAsk, Ask):  # in this order the form begins with the GPUs
    """The whole form of a `gpu` work pool."""

    command: str = Field(
        default="",
        title="Command",
        description="Command to run instead of the flow. Leave empty to run the flow.",
    )
    env: dict[str, str | None] = Field(
        default_factory=dict,
        title="Environment variables",
        description="Environment variables for the job.",
    )
    working_dir: str = Field(
        default="",
        title="Working directory",
        description="Directory the job starts in. Empty means the worker's own.",
    )
    grace_seconds: float = Field(
        default=30,
        ge=0,
        le=3600,
        title="Grace (seconds)",
        description="How long a job that is asked to stop may take before it is killed.",
    )
    checkpoint_root: str = Field(
        default="",
        pattern="^(/.*)?$",
        title="Checkpoint root",
        description="Directory in which the job gets a directory of its own for checkpoints, for example "
        "on a disk that all nodes share. Empty means the pool's folder on the worker's machine.",
    )
    scheduler: str = Field(
        default="default",
        title="Scheduler block",
        description="Name of the GPU Scheduler block that decides for this pool. Counts on the pool only.",
    )
    cluster: str = Field(
        default="default",
        title="Cluster block",
        description="Name of the GPU Cluster block with the pool's devices. Counts on the pool only.",
    )
    warehouse: str = Field(
        default="default",
        title="Warehouse block",
        description="Name of the Warehouse block that facts are written to. Counts on the pool only.",
    )
    name: str = Field(
        default="",
        title="Name",
        description="Name for the job's process or container. Empty uses the run's name.",
    )


class GpuJobConfiguration(QuickEnvironment, BaseJobConfiguration):
    """A run's answers, resolved: what the runtime is told. What the scheduler looks at is read from
    the variables themselves, before anything is resolved."""

    image: str = ""
    pull: Pull = "if-not-present"
    launcher: Launcher = "auto"
    mounts: list[str] = Field(default_factory=list)
    shm_gb: float = 1
    memory_gb: float = 0
    cpus: float = 0
    registry_credentials: str = ""
    working_dir: str = ""
    grace_seconds: float = 30
    checkpoint_root: str = ""


class BadAsk(ValueError):
    """A run's job variables make no sense; the message names each field and what is wrong."""


def check_names(given: Iterable[str], offered: Iterable[str]) -> None:
    """A variable that nobody reads is a slip, or a wish that no job is granted. Prefect lets it pass."""
    known = set(GpuJobVariables.model_fields) | set(offered)
    for name in given:
        top = name.partition(".")[0]  # `env.NAME` sets one entry of `env`
        if top not in known:
            alike = get_close_matches(top, known, n=1)
            hint = f" Did you mean {alike[0]!r}?" if alike else ""
            raise BadAsk(f"A job of this pool cannot ask for {top!r}: there is no such job variable.{hint}")


def job_of(
    run_id: str,
    variables: dict[str, Any],
    *,
    due: datetime,
    name: str = "",
    user: str = "",
    queue_priority: int = 0,
) -> Job:
    """The job that a run with these merged job variables asks for."""
    try:
        ask = Ask.model_validate({key: variables[key] for key in Ask.model_fields if key in variables})
    except ValidationError as error:
        raise BadAsk(f"The job variables are not usable: {explain(error)}.") from None
    if not (ask.min_gpus or ask.gpus) <= ask.gpus <= (ask.max_gpus or ask.gpus):
        raise BadAsk(
            f"The job variables are not usable: gpus is {ask.gpus}, which is not between min_gpus "
            f"({ask.min_gpus}) and max_gpus ({ask.max_gpus})."
        )
    submitted = due.timestamp()
    return Job(
        id=run_id,
        submitted=submitted,
        gpus=0 if ask.coordinator else ask.gpus,
        memory_mb=round(ask.gpu_memory_gb * 1024),
        name=name,
        user=user,
        queue_priority=queue_priority,
        priority=ask.priority + PRIORITY_CLASSES[ask.priority_class],
        deadline=submitted + ask.deadline_seconds if ask.deadline_seconds else None,
        expected_s=ask.expected_seconds or None,
        nodes=_patterns(ask.nodes),
        models=_patterns(ask.gpu_models),
        may_span_nodes=ask.may_span_nodes,
        min_gpus=0 if ask.coordinator else ask.min_gpus,
        max_gpus=0 if ask.coordinator else ask.max_gpus,
        preemptible=ask.preemptible,
    )


def _patterns(given: list[str]) -> tuple[str, ...]:
    return tuple(pattern for pattern in (re.sub(r"\s+", " ", text).strip() for text in given) if pattern)
