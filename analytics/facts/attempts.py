"""Facts about the attempts of jobs."""

from __future__ import annotations

from gpu_flows.analytics.facts.base import AttemptFact, in_table


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
    released: float | None = None
    """When the engine freed its devices, which may be a moment after its end."""


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
    requeued: float | None = None
    """When its end was reported, so that the job could wait again or be launched on other devices."""


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
