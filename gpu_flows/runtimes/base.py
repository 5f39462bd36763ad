"""What a runtime is: it launches an attempt on its devices, stops it, and finds it again.

The world is the ledger. Whatever a runtime starts carries its job, attempt and devices with it,
so that a worker which was killed finds out from the world, not from its memory, what runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gpu_flows.schedulers.model import Device, Job

Intent = Literal["cancel", "reschedule"]
Pull = Literal["if-not-present", "always", "never"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of the host, shown to a container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Login:
    """To a private registry."""

    username: str = ""
    password: str = field(default="", repr=False)
    registry: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """What a job that runs in a container asks for, after it was checked what it may ask for."""

    image: str
    pull: Pull = "if-not-present"
    shm_mb: int = 1024
    memory_mb: int = 0  # 0: as much as the host has
    cpus: float = 0.0  # 0: as many as the host has
    mounts: tuple[Mount, ...] = ()
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # reach the container as files
    login: Login | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything needed to start one attempt."""

    job: Job
    attempt: int
    pool: str
    policy: str
    planned: float
    devices: tuple[Device, ...]
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict, repr=False)
    directory: str = ""
    grace_s: float = 30.0
    hears_intents: bool = True  # runs our entry, which understands a request to stop
    container: Container | None = None  # None: a process of the worker's machine
    checkpoints: str = ""  # the directory that the job keeps its checkpoints in

    @property
    def id(self) -> str:
        """The same for a second launch of the same attempt, which therefore cannot happen."""
        return attempt_id(self.job.id, self.attempt)

    @property
    def runtime(self) -> str:
        return "docker" if self.container else "process"

    @property
    def node(self) -> str:
        """Where it is launched; empty for a job without devices."""
        return self.devices[0].node if self.devices else ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that was launched. `identifier` is what Prefect shows as its infrastructure."""

    launch: Launch
    identifier: str
    started: float


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended, as far as anybody saw it."""

    exit_code: int | None = None  # None where nobody saw one
    ended: float | None = None  # None: just now
    oom_killed: bool | None = None
    peak_memory_mb: float | None = None
    detail: str = ""  # what the runtime knows of it that the exit code does not tell
    lost: bool = False  # nobody knows how it ended, or whether


@dataclass(frozen=True, slots=True)
class Found:
    """What a restarted worker finds. `attempt` is None when the launch never came to be."""

    launch: Launch
    attempt: Attempt | None
    alive: bool


class Runtime(Protocol):
    async def launch(self, launch: Launch, still_wanted: Callable[[], bool]) -> Attempt:
        """Start it, exactly once: launching what already runs answers with what runs. A launch that
        is no longer wanted before anything runs raises NotWanted."""
        ...

    async def wait(self, attempt: Attempt) -> End:
        """How it ended, when it has."""
        ...

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        """Ask it to stop, and make it stop when its grace is over. Returns once it is gone."""
        ...

    async def find(self) -> list[Found]:
        """Every attempt whose end has not been noted, alive or not."""
        ...

    def forget(self, launch: Launch) -> None:
        """Its end has been noted everywhere."""
        ...

    def activity(self) -> dict[str, float]:
        """How busy each live attempt was since the last call, by job id, 0 to 100."""
        ...


class LaunchError(RuntimeError):
    """An attempt could not be started; the message says why and what to do."""


class Refused(LaunchError):
    """The job asks for what it may not have. Nothing was started, and it is not tried again."""


class NodeAway(LaunchError):
    """The node cannot be reached now. Nothing runs there of this attempt; the job waits again."""


class NotWanted(LaunchError):
    """The job was cancelled before anything of it ran."""


def attempt_id(job_id: str, attempt: int) -> str:
    return f"{job_id}.{attempt}"


def device_environment(launch: Launch) -> dict[str, str]:
    """The variables that show a job its own devices and no others."""
    ids = ",".join(device.id for device in launch.devices)
    nodes = list(dict.fromkeys(device.node for device in launch.devices))
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ids,  # a simulated id is no GPU of CUDA's: the job then sees none
        "NVIDIA_VISIBLE_DEVICES": ids or "void",
        "GPU_FLOWS_DEVICES": json.dumps([device.id for device in launch.devices]),
        "GPU_FLOWS_GPUS": str(len(launch.devices)),
        "GPU_FLOWS_NODES": json.dumps(nodes),
        "GPU_FLOWS_ATTEMPT": launch.id,
        "GPU_FLOWS_GRACE_SECONDS": f"{launch.grace_s:g}",
    }
