"""The facts: one frozen class per table. Each fact is written once, by the part that observes it.

The fields of a class are the columns of its table, in order (a test compares them with the schema),
so the recorder needs no mapping. Times are seconds since the epoch here and TIMESTAMPTZ in SQL; the
column is `time` because `at` is a reserved word in DuckDB.

A worker that dies may write a fact again after its restart. In a table with a primary key the
second copy changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from gpu_flows.schedulers.learning.curve import LearningPoint
    from gpu_flows.schedulers.model import Job, Offer


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of a table."""

    table: ClassVar[str]


F = TypeVar("F", bound=Fact)
FACTS: list[type[Fact]] = []
"""Every class of this module that has a table."""


@dataclass_transform(frozen_default=True)
def in_table(name: str) -> Callable[[type[F]], type[F]]:
    """Make the class a frozen dataclass whose instances are rows of the table."""

    def add(fields: type[F]) -> type[F]:
        fact = dataclass(frozen=True, slots=True)(fields)
        fact.table = name
        FACTS.append(fact)
        return fact

    return add


# -- jobs -------------------------------------------------------------------------------------


@in_table("jobs")
class JobSubmitted(Fact):
    """A pool received a job."""

    job_id: str
    pool: str
    name: str
    flow: str
    deployment: str
    user_name: str
    tags: str
    """A JSON list."""
    gpus: int
    gpu_memory_mb: int
    priority: int
    deadline: float | None
    expected_s: float | None
    submitted: float
    """When the run was due."""
    experiment: str = ""
    """The name of a benchmark or a simulation; empty for live work."""

    @classmethod
    def of(
        cls,
        job: Job,
        job_id: str,
        pool: str,
        flow: str,
        deployment: str = "",
        tags: str = "[]",
        experiment: str = "",
    ) -> JobSubmitted:
        """Return the fact that the pool received this job."""
        request = job.gpus, job.memory_mb, job.priority, job.deadline, job.expected_s, job.submitted
        name = job.name or job.id
        return cls(job_id, pool, name, flow, deployment, job.user, tags, *request, experiment)


@in_table("job_ends")
class JobEnded(Fact):
    """A job reached its final state."""

    job_id: str
    ended: float
    outcome: str
    """completed, failed, crashed, cancelled or refused."""
    detail: str = ""


# -- attempts ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptFact(Fact):
    """A fact about one launch of a job."""

    job_id: str
    attempt: int


@in_table("attempts")
class AttemptStarted(AttemptFact):
    """A job was launched."""

    policy: str
    runtime: str
    nodes: str
    """A JSON list."""
    planned: float
    """When the policy chose the job."""
    started: float
    """When its process existed and held its devices."""


@in_table("attempt_ends")
class AttemptEnded(AttemptFact):
    """An attempt ended and released its devices."""

    ended: float
    outcome: str
    """completed, failed, crashed, cancelled, preempted, moved, resized, suspended, out_of_memory, unstarted
    or lost."""
    exit_code: int | None = None
    """None if it is not known, as for a flow that failed: its process ends with 0."""
    detail: str = ""
    oom_killed: bool | None = None
    """None if the runtime does not report it."""
    peak_memory_mb: float | None = None
    """Of the host's memory, as far as it was sampled."""
    comm_s: float | None = None
    """The time for which its devices waited for each other over the network. Only simulations know it."""


@in_table("interruptions")
class AttemptInterrupted(AttemptFact):
    """The policy requested that an attempt stop, and it has released its devices. Its outcome is in
    AttemptEnded: an attempt may also complete or be cancelled while it stops."""

    requested: float
    released: float
    kind: str
    """preempted (the job waits again), moved (to other devices) or resized."""
    policy: str
    freed_for: str
    """A JSON list of the ids of the jobs that got its devices."""


@in_table("saved_work")
class SavedWork(AttemptFact):
    """What an attempt that has ended reported about its checkpoints."""

    saves: int
    save_s: float
    """The sum over all saves."""
    saved_bytes: int
    """The size of the last save."""
    last_saved: float | None
    last_step: int
    restored: float | None
    """When it resumed from a checkpoint; None if it started from the beginning."""
    restore_s: float | None
    restored_step: int | None
    lost_s: float
    """Time on devices since the last checkpoint, if that work has to be repeated."""

    @property
    def has_reports(self) -> bool:
        """Whether the job reported any checkpoint or progress."""
        return bool(self.saves or self.last_step or self.restored)


@in_table("allocations")
class Allocated(AttemptFact):
    """An attempt holds a device, until the attempt's end."""

    device_id: str
    node: str
    memory_mb: int
    """The share of the device's memory that is reserved for the attempt."""
    since: float


# -- the pool ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolFact(Fact):
    """A fact about a pool at a moment."""

    time: float
    pool: str


@in_table("decisions")
class Decided(PoolFact):
    """A policy made a plan that changed something, or that was rejected."""

    policy: str
    waiting: int
    running: int
    started: int
    took_us: float
    error: str = ""
    """Why the plan was rejected."""


@in_table("offers")
class Offered(PoolFact):
    """A policy offered devices to a waiting job, which took them or waits for better placed ones. An offer
    that repeats the job's last one is not recorded."""

    job_id: str
    policy: str
    tier: str
    """The widest part of the network between the devices: node, rack or cluster."""
    accepted: bool
    waited_s: float
    patience_s: float | None
    """How long it declines offers of this tier, from the beginning of its wait; None for ever."""
    slowdown: float
    """That was expected of these devices, against devices of one node."""
    sensitivity: float
    """How much the network has hurt the job, by the policy's own measure."""

    @classmethod
    def of(cls, offer: Offer, job_id: str, pool: str, policy: str, time: float) -> Offered:
        """Return the fact that the policy made this offer."""
        return cls(time, pool, job_id, policy, **offer.figures())


@in_table("swaps")
class Swapped(PoolFact):
    """The scheduler block names another policy, or other options for the same one."""

    from_policy: str
    to_policy: str
    options: str
    """A JSON object."""
    error: str = ""
    """Why the change was refused; the old policy stays in force."""


@in_table("experiments")
class ExperimentRan(Fact):
    """A benchmark or simulation ran. Its jobs carry its name."""

    experiment: str
    time: float
    description: str
    """A JSON object that describes the workload."""
    disturbed: str = ""
    """Why its figures do not count; empty if they do."""


# -- devices ----------------------------------------------------------------------------------


@in_table("nodes")
class NodeSeen(PoolFact):
    """A node joined the pool, or is in another rack than before."""

    node: str
    rack: str


@in_table("devices")
class DeviceSeen(Fact):
    """A device joined the pool."""

    device_id: str
    pool: str
    node: str
    index: int
    model: str
    memory_mb: int
    time: float


@in_table("device_events")
class DeviceEvent(Fact):
    """The health of a device changed."""

    time: float
    device_id: str
    node: str
    kind: str
    """healthy, sick or gone."""
    detail: str = ""


@in_table("samples")
class Sampled(Fact):
    """One reading of one device. A value is None if the device does not report it."""

    time: float
    device_id: str
    utilization: float | None
    """0 to 100."""
    memory_used_mb: float | None
    power_w: float | None
    temperature_c: float | None


# -- predictions ------------------------------------------------------------------------------


@in_table("job_features")
class FeaturesSeen(Fact):
    """What is known of a job before it runs."""

    job_id: str
    kind: str
    parameters: str
    """A JSON object: those of its run, flat and without secrets."""
    predicted: str
    """A JSON list: what the owner of the job did not state."""


@in_table("predictions")
class Predicted(Fact):
    """A need of a job was predicted."""

    job_id: str
    time: float
    quantity: str
    """memory_mb or seconds."""
    device_model: str
    """Empty for any."""
    value: float
    upper: float
    how: str
    version: str = ""
    detail: str = ""


@in_table("memory_peaks")
class MemoryPeak(AttemptFact):
    """The most memory that an attempt used on a device."""

    device_id: str
    peak_mb: float
    source: str
    """nvml or reported."""


@in_table("progress_reports")
class ProgressReported(AttemptFact):
    """The output of an attempt told how far it is."""

    time: float
    fraction: float
    remaining_s: float
    source: str


# -- learned policies -------------------------------------------------------------------------


@in_table("learning_points")
class LearningStep(Fact):
    """How good a policy was after so many steps of its training."""

    training: str
    """The name of the training."""
    seed: int
    step: int
    time: float
    reward: float | None
    """Of an episode, the mean of the latest 32."""
    turnaround_s: float | None
    """The mean turnaround of the jobs of these episodes."""
    baseline_turnaround_s: float | None
    """That of the same jobs under the policy that it is compared with."""
    entropy: float | None
    """How undecided the policy is."""
    value_loss: float | None
    seconds: float
    """How long the training has taken so far."""

    @classmethod
    def of(cls, point: LearningPoint, training: str, seed: int, time: float) -> LearningStep:
        """Return the fact of a point of a learning curve. What is not known there (NaN) is None."""
        known: dict[str, Any] = asdict(point)
        known.update({name: None for name, value in known.items() if isnan(value)})
        return cls(training=training, seed=seed, time=time, **known)
