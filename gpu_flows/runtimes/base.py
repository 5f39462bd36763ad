"""The protocol that every runtime implements, and the values that cross it.

A worker may be killed at any time, so a runtime never relies on its memory: each process or container
carries its job, attempt and devices with it. A new worker finds it by that, and adopts it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gpu_flows.runtimes.entry import MEMORY_FRACTION, WAITS_FOR_MEMORY
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.prediction.gpu_models import find_context_mib

Intent = Literal["cancel", "reschedule"]
Pull = Literal["if-not-present", "always", "never"]
MEMORY_SHARE = "GPU_FLOWS_GPU_MEMORY_MB"  # what a job may use of each device, where jobs share devices


class Runtime(Protocol):
    """Launches attempts on the devices that the scheduler chose, and reports how they end.

    The life of an attempt: `launch`, then `wait` for its end, perhaps `stop` meanwhile, then `forget`.
    A worker that starts calls `find` first, and waits for the attempts that it finds as for its own.
    All methods but `sample_activity` and `read_output` are called in the worker's event loop and must not
    block it.
    """

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool]) -> Attempt:
        """Start the attempt exactly once: a second launch of a running attempt returns that attempt.

        Check `still_wanted` before the command starts, and raise LaunchCancelled if it returns False.
        Raise Refused for a request that the pool does not allow, NodeUnreachable if the job shall wait
        and be launched again later, and LaunchError for any other failure. After an error, nothing of
        the attempt runs.
        """
        ...

    async def wait(self, attempt: Attempt) -> End:
        """Return how the attempt ended, as soon as it has ended and nothing of it runs."""
        ...

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        """Ask the attempt to stop, kill it after `launch.grace_s`, and return when it has stopped.

        A launch that `handles_intents` is asked in such a way that its flow learns the intent; any other
        gets SIGTERM. An attempt that was asked before, also by an earlier worker, is not asked again.
        """
        ...

    async def find(self) -> list[Found]:
        """Return every attempt, running or ended, that another worker launched, for which `forget` has not
        been called."""
        ...

    def forget(self, launch: Launch) -> None:
        """Release what is kept of an attempt whose end has been recorded everywhere."""
        ...

    def sample_activity(self) -> dict[str, float]:
        """Return how busy each running attempt was since the last call: job id -> 0 to 100.

        Called in the sampler's thread.
        """
        ...

    def read_output(self, launch: Launch) -> list[str]:
        """Return the lines that a running attempt printed since the last call, or the newest of them.

        Called in a thread, for one attempt at a time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that is needed to start one attempt."""

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
    handles_intents: bool = True  # the command is `entry.py`, which passes an intent on to Prefect's engine
    container: Container | None = None  # None: a process of the worker's machine
    checkpoints: str = ""  # the directory in which the job keeps its checkpoints
    start_before: float = 0.0  # by the wall clock; an attempt that is later does not start. 0: no limit
    memory_share_mb: int = 0  # of each device, where jobs share devices; 0: all of it
    waits_for_memory: bool = False  # whether it waits for more if it runs out of GPU memory

    @property
    def id(self) -> str:
        """The name of the attempt. It is the same for a second launch, so that a runtime recognises one."""
        return attempt_id(self.job.id, self.attempt)

    @property
    def runtime(self) -> str:
        """The name of the runtime that serves this launch."""
        return "docker" if self.container else "process"

    @property
    def node(self) -> str:
        """The node of its first device; empty for a job without devices."""
        return self.devices[0].node if self.devices else ""


@dataclass(frozen=True, slots=True)
class Container:
    """The container that a job asks for. The pool's rules have been applied to it."""

    image: str
    pull: Pull = "if-not-present"
    shm_mb: int = 1024
    memory_mb: int = 0  # 0: no limit but the host's memory
    cpus: float = 0.0  # 0: no limit but the host's processors
    mounts: tuple[Mount, ...] = ()
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # reach the container as files
    login: Login | None = None
    shares_checkpoints: bool = False  # the checkpoints are under a root that all hosts share


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of the host that a container sees under another path."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials of a private registry."""

    username: str = ""
    password: str = field(default="", repr=False)
    registry: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that was launched."""

    launch: Launch
    identifier: str  # where it runs, as Prefect shows it for the run
    started: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Found:
    """An attempt that a new worker finds. `attempt` is None if the command was never started."""

    launch: Launch
    attempt: Attempt | None
    alive: bool


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended, as far as the runtime knows."""

    exit_code: int | None = None  # None: unknown
    ended: float | None = None  # None: just now
    oom_killed: bool | None = None
    peak_memory_mb: float | None = None
    detail: str = ""  # what the exit code does not show, as a sentence for the user
    lost: bool = False  # unknown whether and how it ended, such as on a host that stopped answering
    unstarted: bool = False  # its command was not started; it may be launched again
    tail: str = field(default="", repr=False)  # the last lines of its output, if it may have failed


class LaunchError(RuntimeError):
    """An attempt could not be started; the message states why and how to fix it."""


class Refused(LaunchError):
    """The pool's rules do not allow what the job asks for. The job fails and is not launched again."""


class NodeUnreachable(LaunchError):
    """The node does not answer. Nothing of the attempt runs there; the job returns to the queue."""


class LaunchCancelled(LaunchError):
    """The job was cancelled before its command started."""


def attempt_id(job_id: str, attempt: int) -> str:
    return f"{job_id}.{attempt}"


def device_environment(launch: Launch) -> dict[str, str]:
    """Return the variables that make a job see its own devices and no others."""
    ids = ",".join(device.id for device in launch.devices)
    nodes = list(dict.fromkeys(device.node for device in launch.devices))
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ids,  # CUDA knows no simulated id, so such a job sees no GPU
        "NVIDIA_VISIBLE_DEVICES": ids or "void",
        "GPU_FLOWS_DEVICES": json.dumps([device.id for device in launch.devices]),
        "GPU_FLOWS_GPUS": str(len(launch.devices)),
        "GPU_FLOWS_NODES": json.dumps(nodes),
        "GPU_FLOWS_ATTEMPT": launch.id,
        "GPU_FLOWS_GRACE_SECONDS": f"{launch.grace_s:g}",
        **_memory_share(launch),
        **({WAITS_FOR_MEMORY: "1"} if launch.waits_for_memory else {}),
    }


def _memory_share(launch: Launch) -> dict[str, str]:
    """Return the variables that tell a job how much memory of each device it may use, if not all. torch
    counts its own memory only, so its fraction is without the CUDA context of the process."""
    smallest = min(launch.devices, key=lambda device: device.memory_mb, default=None)
    if smallest is None or not 0 < launch.memory_share_mb < smallest.memory_mb:
        return {}
    context_mb = min(find_context_mib(smallest.model), launch.memory_share_mb // 2)
    fraction = (launch.memory_share_mb - context_mb) / smallest.memory_mb
    return {MEMORY_SHARE: str(launch.memory_share_mb), MEMORY_FRACTION: f"{fraction:.4f}"}
