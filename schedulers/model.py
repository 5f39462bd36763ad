"""The words of the house, as frozen facts.

job        one Prefect flow run asking for devices
attempt    one launch of a job; a job that is preempted or retried has several
device     one GPU (or MIG slice), known by its UUID
node       a machine with devices; nodes of one rack are near each other
policy     decides which job starts next and where; pure
plan       what a policy answers
reason     why a job waits, with a stable code

Times are seconds since the epoch, memory is in MiB. Nothing here knows how any of it is run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. `id` is its UUID and means the same thing everywhere."""

    id: str
    node: str
    index: int
    model: str = "GPU"
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and the devices in it, in index order."""

    name: str
    devices: tuple[Device, ...]
    rack: str = "default"


@dataclass(frozen=True, slots=True)
class Job:
    """What a job asks for. Nothing about how far it has come."""

    id: str
    submitted: float = 0.0  # when it was due: the start of its turnaround
    gpus: int = 1  # 0 only watches over other jobs: it starts at once and holds nothing
    memory_mb: int = 0  # per device; 0 asks for whole devices, which nobody shares
    name: str = ""
    user: str = ""
    line: int = 0  # Prefect's work-queue priority: lower lines come first
    priority: int = 0  # higher is more urgent, for policies that look at it
    deadline: float | None = None
    expected_s: float | None = None  # expected time on the devices
    nodes: tuple[str, ...] = ()  # patterns; empty means any node
    models: tuple[str, ...] = ()  # patterns for Device.model; empty means any
    may_span_nodes: bool = False

    @property
    def order(self) -> tuple[int, float, str]:
        """Arrival order: what every policy starts from."""
        return (self.line, self.submitted, self.id)

    def accepts(self, device: Device) -> bool:
        """Whether this device, were it free, could serve the job."""
        return (
            device.memory_mb >= self.memory_mb
            and _matches(device.node, self.nodes)
            # a model is known by a part of its name: `1080` finds `GTX 1080 Ti`
            and _matches(device.model, tuple(f"*{pattern}*" for pattern in self.models))
        )

    @property
    def ask(self) -> tuple[int, int, tuple[str, ...], tuple[str, ...], bool]:
        """What it asks of the cluster: two jobs with the same ask can be served by the same devices."""
        return (self.gpus, self.memory_mb, self.nodes, self.models, self.may_span_nodes)


def _matches(value: str, patterns: tuple[str, ...]) -> bool:
    """Shell-style patterns, whatever the case."""
    return not patterns or any(fnmatchcase(value.lower(), pattern.lower()) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Start:
    """Launch this job on exactly these devices, all of them or none."""

    job: Job
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy answers. `wake_at` asks to be called again at that time at the latest."""

    starts: tuple[Start, ...] = ()
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits (or was refused). `code` is a stable name that programs may rely on."""

    code: str
    summary: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.summary} {self.fix}".strip()


@dataclass(slots=True)
class Running:
    """A job that holds devices."""

    job: Job
    devices: tuple[Device, ...]
    since: float
    attempt: int = 1
    policy: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(device.node for device in self.devices))


def all_devices(nodes: Iterable[Node]) -> list[Device]:
    """Every device of these nodes, in node order."""
    return [device for node in nodes for device in node.devices]
