"""The facts: one frozen class per table, each written once by the part that knows it.

A fact's fields are its table's columns, in order (a test compares them with the schema), so
the recorder needs no mapping (`time`, because a column called `at` is a syntax error in
DuckDB). Times are seconds since the epoch here and TIMESTAMPTZ in SQL.
A fact with a natural key may be written twice (a worker that died between doing and noting):
the second copy changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Fact:
    table: ClassVar[str]


@dataclass(frozen=True, slots=True)
class JobSubmitted(Fact):
    """A job came into the pool's view. `submitted` is when its run was due."""

    table: ClassVar[str] = "jobs"
    job_id: str
    pool: str
    name: str
    flow: str
    deployment: str
    user_name: str
    tags: str  # JSON list
    gpus: int
    gpu_memory_mb: int
    priority: int
    deadline: float | None
    expected_s: float | None
    submitted: float
    experiment: str = ""  # empty for live work; the name of a benchmark or a simulation


@dataclass(frozen=True, slots=True)
class JobEnded(Fact):
    """A job will not run any more. `outcome`: completed, failed, crashed, cancelled, refused."""

    table: ClassVar[str] = "job_ends"
    job_id: str
    ended: float
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AttemptStarted(Fact):
    """A job was launched. `planned` is when the policy chose it, `started` when it held devices
    and its process existed."""

    table: ClassVar[str] = "attempts"
    job_id: str
    attempt: int
    policy: str
    runtime: str
    nodes: str  # JSON list
    planned: float
    started: float


@dataclass(frozen=True, slots=True)
class AttemptEnded(Fact):
    """An attempt let go of its devices. `outcome`: completed, failed, crashed, cancelled,
    preempted, moved, resized, lost. `exit_code` is None where nobody saw it."""

    table: ClassVar[str] = "attempt_ends"
    job_id: str
    attempt: int
    ended: float
    outcome: str
    exit_code: int | None = None
    detail: str = ""
    oom_killed: bool | None = None  # None where nobody can tell
    peak_memory_mb: float | None = None  # of its host's memory, as far as it was watched


@dataclass(frozen=True, slots=True)
class Departed(Fact):
    """An attempt was asked to leave its devices, and is gone. `kind` is what it was asked for: preempted
    (to wait again), moved (to other devices) or resized. How it ended stands with the attempt's end: a
    job may also finish, or be cancelled, while it leaves."""

    table: ClassVar[str] = "departures"
    job_id: str
    attempt: int
    asked: float
    gone: float
    kind: str
    policy: str
    room_for: str  # JSON list: the ids of the jobs that got its devices


@dataclass(frozen=True, slots=True)
class SavedWork(Fact):
    """What an attempt that has ended told of its checkpoints. `lost_s` is the time on devices that
    nothing came of: since the last checkpoint, if it was not asked to leave or could not save."""

    table: ClassVar[str] = "saved_work"
    job_id: str
    attempt: int
    saves: int
    save_s: float  # all of them together
    saved_bytes: int  # the last one
    last_saved: float | None
    last_step: int
    restored: float | None  # when it went on from a checkpoint; None if it began anew
    restore_s: float | None
    restored_step: int | None
    lost_s: float

    @property
    def tells(self) -> bool:
        """Whether the job told anything at all."""
        return bool(self.saves or self.last_step or self.restored)


@dataclass(frozen=True, slots=True)
class Allocated(Fact):
    """A device was given to an attempt, from `since` until the attempt's end."""

    table: ClassVar[str] = "allocations"
    job_id: str
    attempt: int
    device_id: str
    node: str
    memory_mb: int  # the share of the device's memory that was promised to it
    since: float


@dataclass(frozen=True, slots=True)
class Decided(Fact):
    """One plan that changed something, or that was rejected (`error` says why)."""

    table: ClassVar[str] = "decisions"
    time: float
    pool: str
    policy: str
    waiting: int
    running: int
    started: int
    took_us: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Swapped(Fact):
    """The scheduler block named another policy, or the same with other options.
    A refused edit has its reason in `error`, and the old policy stayed."""

    table: ClassVar[str] = "swaps"
    time: float
    pool: str
    from_policy: str
    to_policy: str
    options: str  # JSON object
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSeen(Fact):
    """A device joined the pool."""

    table: ClassVar[str] = "devices"
    device_id: str
    pool: str
    node: str
    index: int
    model: str
    memory_mb: int
    time: float


@dataclass(frozen=True, slots=True)
class DeviceEvent(Fact):
    """A device's health changed. `kind`: healthy, sick, gone."""

    table: ClassVar[str] = "device_events"
    time: float
    device_id: str
    node: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Sampled(Fact):
    """One reading of one device. None where the device does not tell."""

    table: ClassVar[str] = "samples"
    time: float
    device_id: str
    utilization: float | None  # 0 to 100
    memory_used_mb: float | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class ExperimentRan(Fact):
    """A benchmark or simulation whose jobs carry its name."""

    table: ClassVar[str] = "experiments"
    experiment: str
    time: float
    description: str  # JSON object: the declared workload


FACTS: tuple[type[Fact], ...] = (
    JobSubmitted,
    JobEnded,
    AttemptStarted,
    AttemptEnded,
    Departed,
    SavedWork,
    Allocated,
    Decided,
    Swapped,
    DeviceSeen,
    DeviceEvent,
    Sampled,
    ExperimentRan,
)
