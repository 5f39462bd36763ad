"""The data that schedulers work on.

job        one Prefect flow run asking for devices
attempt    one launch of a job; a job that is preempted or retried has several
device     one GPU (or MIG slice), identified by its UUID
node       a machine with devices; nodes of one rack are near each other
policy     decides which job starts next and where
plan       what a policy decides
reason     why a job waits, with a stable code

Times are seconds since the epoch, memory is in MiB. Nothing here depends on how jobs are run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

DEFAULT_RACK = "default"  # of nodes whose rack nobody states


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. `id` is its UUID, on every host."""

    id: str
    node: str
    index: int
    model: str = "GPU"
    memory_mb: int = 0


class DeviceLink(IntEnum):
    """How closely two devices of a node are connected; a closer connection is greater."""

    NUMA = 1  # both are attached to the same processor
    SWITCH = 2  # both are behind the same PCIe switches
    NVLINK = 3

    def __str__(self) -> str:
        return ("", "NUMA", "PCIe", "NVLink")[self]


class LinkGroup(NamedTuple):
    """Devices of a node, by index, of which every two are linked at least this closely."""

    link: DeviceLink
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and the devices in it, in index order."""

    name: str
    devices: tuple[Device, ...]
    rack: str = DEFAULT_RACK
    cpus: float = 0.0  # 0: not counted
    ram_mb: int = 0  # 0: not counted
    links: tuple[LinkGroup, ...] = ()  # devices in no common group are linked by nothing that is known


@dataclass(frozen=True, slots=True)
class Job:
    """What a job asks for. Its progress is not part of it."""

    id: str
    submitted: float = 0.0  # when it was due: the start of its turnaround
    gpus: int = 1  # a job with 0, such as one that only coordinates others, starts immediately
    memory_mb: int = 0  # per device; 0 asks for whole devices, which are not shared
    name: str = ""
    user: str = ""
    kind: str = ""  # jobs of one kind run and scale alike
    queue_priority: int = 0  # of its Prefect work queue: lower numbers come first
    priority: int = 0  # higher is more urgent, for policies that use it
    deadline: float | None = None
    expected_s: float | None = None  # expected time on the devices
    nodes: tuple[str, ...] = ()  # patterns; empty means any node
    models: tuple[str, ...] = ()  # patterns for Device.model; empty means any
    may_span_nodes: bool = False
    one_node: str = ""  # why it must not span nodes, if that is not its owner's choice
    min_gpus: int = 0  # an elastic job takes any number between these two; 0: exactly `gpus`
    max_gpus: int = 0
    preemptible: bool = True  # whether it may be preempted, moved or resized
    cpus: float = 0.0  # on each of its nodes
    ram_mb: int = 0  # on each of its nodes
    predicted: tuple[str, ...] = ()  # names of the fields above that its owner did not state
    # Everything that decides which devices can serve the job: jobs with equal requests are served by
    # the same devices. Computed once because it is a key in many lookups.
    request: tuple[object, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        request = (
            self.gpus,
            self.memory_mb,
            self.may_span_nodes,
            self.nodes,
            self.models,
            self.cpus,
            self.ram_mb,
            self.min_gpus,
            self.max_gpus,
        )
        object.__setattr__(self, "request", request)

    def expecting(self, seconds: float | None) -> Job:
        """Return the same job with another expected duration, which counts as predicted if its owner stated
        none; much cheaper than dataclasses.replace."""
        copy = object.__new__(Job)
        for member in _MEMBERS:
            member.__set__(copy, member.__get__(self))
        object.__setattr__(copy, "expected_s", seconds)
        if self.expected_s is None and seconds is not None:
            object.__setattr__(copy, "predicted", (*self.predicted, "expected_s"))
        return copy

    def as_stated(self) -> Job:
        """Return the job without what was predicted of it."""
        predicted = self.predicted
        memory_mb = 0 if "memory_mb" in predicted else self.memory_mb
        expected_s = None if "expected_s" in predicted else self.expected_s
        return replace(self, memory_mb=memory_mb, expected_s=expected_s, predicted=()) if predicted else self

    @property
    def order(self) -> tuple[int, float, str]:
        """Sorts jobs by queue priority and arrival."""
        return (self.queue_priority, self.submitted, self.id)

    @property
    def least(self) -> int:
        """The fewest devices it can run on."""
        return self.min_gpus or self.gpus

    @property
    def most(self) -> int:
        """The most devices it can use."""
        return self.max_gpus or self.gpus

    def accepts(self, device: Device) -> bool:
        """Return whether the job could run on this device if it were free."""
        return (
            device.memory_mb >= self.memory_mb
            and (not self.nodes or _matches(device.node, self.nodes))
            # a part of the model's name is enough: `1080` finds `GTX 1080 Ti`
            and (not self.models or _matches(device.model, tuple(f"*{pattern}*" for pattern in self.models)))
        )


_MEMBERS = tuple(getattr(Job, member.name) for member in fields(Job))


def _matches(value: str, patterns: tuple[str, ...]) -> bool:
    """Match shell-style patterns, ignoring case."""
    return any(fnmatchcase(value.lower(), pattern.lower()) for pattern in patterns)


class Start(NamedTuple):
    """Launch this job on exactly these devices."""

    job: Job
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits (or was refused). `code` is a stable name that programs may rely on."""

    code: str
    summary: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.summary} {self.fix}".strip()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job came in its earlier attempts."""

    attempts: int = 0
    ran_s: float = 0.0  # time on devices
    gpu_s: float = 0.0  # time on devices, times the number of devices
    work_s: float = 0.0  # the part of its expected duration that is done and saved
    stopped: float | None = None  # when the last attempt ended
    preemptions: int = 0  # moves and resizes do not count


NO_PROGRESS = Progress()


@dataclass(slots=True)
class Running:
    """A job that holds devices."""

    job: Job
    devices: tuple[Device, ...]
    since: float
    attempt: int = 1
    policy: str = ""
    before: Progress = NO_PROGRESS
    rate: float = 1.0  # seconds of work done per second
    rated: float = 0.0  # since when the rate holds
    worked_s: float = 0.0  # the work done in this attempt before that
    _by_node: dict[str, int] | None = field(default=None, compare=False, repr=False)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.by_node)

    @property
    def by_node(self) -> dict[str, int]:
        """The number of devices it holds on each node."""
        if self._by_node is None:
            self._by_node = {}
            for device in self.devices:
                self._by_node[device.node] = self._by_node.get(device.node, 0) + 1
        return self._by_node

    def work(self, now: float) -> float:
        """Return how much of its expected duration is done, including this attempt."""
        return self.before.work_s + self.worked_s + max(0.0, now - self.rated) * self.rate

    def due(self) -> float:
        """Return when it will end at its present rate, if it takes as long as expected."""
        expected = self.job.expected_s
        if expected is None or not self.rate:
            return math.inf
        return self.rated + (expected - self.before.work_s - self.worked_s) / self.rate

    def gpu_seconds(self, now: float) -> float:
        """Return the service it attained so far, over all attempts."""
        return self.before.gpu_s + (now - self.since) * len(self.devices)

    def progress(self, now: float) -> Progress:
        """Return its progress if it is stopped now."""
        ran = now - self.since
        before = self.before
        return Progress(
            self.attempt,
            before.ran_s + ran,
            before.gpu_s + ran * len(self.devices),
            self.work(now),
            now,
            before.preemptions,
        )


class Preempt(NamedTuple):
    """Stop this job and put it back in the queue. Started again in the same plan, it is moved or resized."""

    running: Running


class Refuse(NamedTuple):
    """Reject a job that can never run here, for this reason."""

    job: Job
    reason: Reason


Action = Start | Preempt | Refuse


class Tier(IntEnum):
    """The widest part of the network through which the devices of a job communicate."""

    NODE = 0
    RACK = 1
    CLUSTER = 2

    def __str__(self) -> str:
        return ("in one node", "in one rack", "across racks")[self]


class Offer(NamedTuple):
    """Devices that a policy offered to a waiting job, which took them or waits for better ones."""

    job: Job
    tier: Tier  # of the offered devices
    accepted: bool
    waited_s: float  # when the offer was made
    patience_s: float  # how long it declines offers of this tier, from the beginning of its wait
    slowdown: float = 1.0  # that is expected of the offered devices
    sensitivity: float = 0.0  # how much the network has hurt the job so far, by the policy's own measure

    def figures(self) -> dict[str, Any]:
        """Return what is recorded and shown of it, as numbers and texts that JSON can hold."""
        return {
            "tier": self.tier.name.lower(),
            "accepted": self.accepted,
            "waited_s": self.waited_s,
            "patience_s": self.patience_s if math.isfinite(self.patience_s) else None,
            "slowdown": self.slowdown,
            "sensitivity": self.sensitivity,
        }


class Plan(NamedTuple):
    """What a policy decided: preempt these jobs, then start those, and plan again at `wake_at` at the
    latest."""

    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    wake_at: float | None = None
    offers: tuple[Offer, ...] = ()


def all_devices(nodes: Iterable[Node]) -> list[Device]:
    """Return every device of these nodes, in node order."""
    return [device for node in nodes for device in node.devices]
