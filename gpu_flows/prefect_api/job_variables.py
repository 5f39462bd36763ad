"""The job variables of a `gpu` work pool, as a form.

Every field is a field of the pool's form in the Prefect UI, a job variable of a deployment and a job
variable of a single run, in rising order of precedence. Fields have plain types and a default of 0 or
empty for "none", because the UI draws those as simple input boxes. The UI renders descriptions as
Markdown, which swallows asterisks and empty quotes, so descriptions contain neither.
"""

from __future__ import annotations

from collections.abc import Iterable

from prefect.workers.base import BaseJobConfiguration, BaseVariables
from pydantic import Field

from gpu_flows.common.clock import LONGEST_S
from gpu_flows.common.forms import Form
from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.prefect_api.conventions import PriorityClass
from gpu_flows.prefect_private import QuickEnvironment
from gpu_flows.runtimes.base import Pull
from gpu_flows.runtimes.docker.command_launchers import Launcher

MOST_GPUS = 4096


class SchedulingVariables(Form):
    """The job variables that the scheduler reads."""

    gpus: int = Field(1, ge=1, le=MOST_GPUS)
    """How many devices the job needs, all at the same time."""

    min_gpus: int = Field(0, ge=0, le=MOST_GPUS, title="Fewest GPUs")
    """The fewest devices on which an elastic job runs. 0 means the same as GPUs."""

    max_gpus: int = Field(0, ge=0, le=MOST_GPUS, title="Most GPUs")
    """The most devices that an elastic job can use. 0 means the same as GPUs."""

    gpu_memory_gb: float = Field(0, ge=0, le=4096, title="GPU memory (GB per device)")
    """Memory that the job needs on each device. A job that states it may share a device, if the policy
    allows sharing, and its memory is never promised to another job. 0 means that the pool predicts it, and
    asks for whole devices if it cannot."""

    gpu_models: list[str] = Field(default_factory=list)
    """Accept only these models, given by a part of the name or a wildcard pattern, for example A100. Empty
    accepts any model."""

    nodes: list[str] = Field(default_factory=list)
    """Accept only these nodes, given by name or wildcard pattern, for example node-1. Empty accepts any
    node."""

    may_span_nodes: bool = False
    """Whether the devices may be on several nodes when no single node has enough of them."""

    coordinator: bool = False
    """The job only submits and watches other runs. It starts immediately and holds no device."""

    priority: int = Field(0, ge=-1000, le=1000)
    """Higher is more urgent, for policies that use priorities."""

    priority_class: PriorityClass = "normal"
    """Adds -100, 0, 100 or 1000 to the priority."""

    preemptible: bool = True
    """Whether the job may be stopped in favour of other jobs, to continue later from its checkpoint."""

    expected_seconds: float = Field(
        0, ge=0, le=LONGEST_S, allow_inf_nan=False, title="Expected duration (seconds)"
    )
    """How long the job will run, for policies that use durations. 0 means unknown; the pool then predicts
    it from earlier jobs."""

    memory_step: str = Field("", pattern=r"^([\w.]+:\w+)?$", title="Training step for the memory prediction")
    """An importable function that builds the training step of the job, as module:function. The pool traces
    the step to predict the GPU memory of a job that does not state it. The function gets those parameters of
    the run that it accepts."""

    deadline_seconds: float = Field(
        0, ge=0, le=LONGEST_S, allow_inf_nan=False, title="Deadline (seconds after it was due)"
    )
    """When the job should be finished, for policies that use deadlines. 0 means no deadline."""

    hold: bool = False
    """Keep the job waiting until this is switched off, also while devices are free."""

    after: list[str] = Field(default_factory=list, title="After these runs")
    """Ids of runs that must complete before the job may start. If one of them ends in any other way, the
    job is refused."""

    after_any: list[str] = Field(default_factory=list, title="After the end of these runs")
    """Ids of runs that must have ended before the job may start, in whatever way."""

    user: str = ""
    """Who the job belongs to, for fair shares and reports. Empty means the tag user:NAME of the run or its
    deployment, or else the creator of either."""


class ContainerVariables(Form):
    """The job variables that describe a container."""

    image: str = Field("", title="Container image")
    """Image to run the job in, on a pool whose runtime is Docker. With a command, any image works. Without
    a command, the image must contain Prefect and the flow. Empty runs the job as a process."""

    pull: Pull = Field("if-not-present", title="Pull the image")
    """When to pull the image from its registry: if the host does not have it, always, or never."""

    launcher: Launcher = "auto"
    """How a command in a container uses several devices: 'auto' runs Python programs with torchrun,
    'horovodrun' needs an image with Horovod, 'none' runs the command unchanged."""

    mounts: list[str] = Field(default_factory=list)
    """Folders of the host, as SOURCE:TARGET or SOURCE:TARGET:ro, where the pool allows them."""

    shm_gb: float = Field(1, ge=0, le=256, title="Shared memory (GB)")
    """Size of /dev/shm in the container, which data loaders and NCCL use."""

    memory_gb: float = Field(0, ge=0, le=65536, title="Memory limit (GB)")
    """The most main memory that the container may use. 0 means the pool's limit."""

    cpus: float = Field(0, ge=0, le=4096, title="CPU limit")
    """The most processors that the container may use. 0 means the pool's limit."""

    registry_credentials: str = ""
    """Name of a Docker Registry Credentials block, for an image in a private registry."""


# The bases are in this order because the form then begins with the scheduling variables.
class GpuJobVariables(BaseVariables, ContainerVariables, SchedulingVariables):
    """The whole form of a `gpu` work pool."""

    command: str = ""
    """Command to run instead of the flow. Leave empty to run the flow."""

    env: dict[str, str | None] = Field(default_factory=dict, title="Environment variables")
    """Environment variables for the job."""

    working_dir: str = Field("", title="Working directory")
    """Directory in which the job starts. Empty means an empty directory of its own, or the image's own."""

    grace_seconds: float = Field(30, ge=0, le=3600, title="Grace period (seconds)")
    """How long a job may take to stop after it was asked to, before it is killed."""

    checkpoint_root: str = Field("", pattern="^(/.*)?$")
    """Directory in which each job gets its own checkpoint directory, for example on a disk that all nodes
    share. Empty means the pool's folder on the machine of the worker."""

    scheduler: str = Field("default", title="Scheduler block")
    """Name of the GPU Scheduler block of this pool. Only the value set on the pool is used."""

    cluster: str = Field("default", title="Cluster block")
    """Name of the GPU Cluster block with the pool's devices. Only the value set on the pool is used."""

    warehouse: str = Field("default", title="Warehouse block")
    """Name of the Warehouse block to record to. Only the value set on the pool is used."""

    name: str = ""
    """Name for the process or container of the job. Empty uses the name of the run."""


class GpuJobConfiguration(QuickEnvironment, BaseJobConfiguration):
    """The resolved job variables of a run that the runtime needs.

    The scheduling variables are not part of it: they are read before anything is resolved.
    """

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


class BadJobVariables(ValueError):
    """The job variables of a run cannot be used; the message names each variable and its error."""


def check_variable_names(given: Iterable[str], offered: Iterable[str]) -> None:
    """Raise BadJobVariables for a name that neither gpu-flows nor the pool's template (`offered`) knows.

    Prefect accepts such names silently, although no job would ever get what they ask for.
    """
    known = set(GpuJobVariables.model_fields) | set(offered)
    for name in given:
        variable = name.partition(".")[0]  # `env.NAME` sets one entry of `env`
        if variable not in known:
            what = f"A job of this pool cannot ask for {variable!r}: there is no such job variable."
            raise BadJobVariables(f"{what} {did_you_mean(variable, known)}".rstrip())
