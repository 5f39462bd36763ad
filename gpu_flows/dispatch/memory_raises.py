"""What happens to a job that ran out of GPU memory: it waits for more, at most twice, or it has failed.

It waits again if its bound was not its owner's: the bound was predicted, or there was none, so the devices
were ours to choose; or it ran on a device that is given out in shares, where a neighbour may be at fault. A
job that stated its memory and had whole devices has failed, and so has one that already had the most memory
that the pool can give it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.prediction.raised_bound import MOST_RAISES, find_next_bound, raise_bound


@dataclass(frozen=True, slots=True)
class Raise:
    """The raised memory bound of a job, and why."""

    bound_mb: int
    count: int  # how often its bound has been raised
    attempt: int  # the attempt that ran out of memory
    why: str = ""  # for the run's owner


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An attempt that ran out of GPU memory."""

    job: Job
    devices: tuple[Device, ...]
    attempt: int
    shares: bool  # whether its devices were given out in shares, so that it had its bound and not all of them
    needed_mb: float | None = None  # at least so much, if that is known

    @property
    def device_mb(self) -> int:
        return min((device.memory_mb for device in self.devices), default=0)

    @property
    def had_mb(self) -> int:
        """The memory that it could use on each device."""
        return (
            min(self.job.memory_mb, self.device_mb) if self.shares and self.job.memory_mb else self.device_mb
        )


def decide_raise(failure: OutOfMemory, before: Raise | None, cluster: Cluster) -> Raise | str:
    """Return the raised bound with which the job waits again, or why it has failed."""
    if before and before.attempt == failure.attempt:
        return before  # an earlier worker decided this, and was killed before it could report it
    job, had_mb, count = failure.job, failure.had_mb, before.count if before else 0
    died = f"It ran out of GPU memory with {format_gb(had_mb)}"
    if not failure.shares and job.memory_mb and "memory_mb" not in job.predicted:
        return f"{died}, the whole device; it asks for {format_gb(job.memory_mb)}. Ask for a larger device."
    if count >= MOST_RAISES:
        return f"{died}, after its memory was raised {count} times. State gpu_memory_gb, or use less."
    raised_mb = raise_bound(had_mb, failure.device_mb, failure.needed_mb)
    raised = find_next_bound(job, raised_mb, count, cluster.could_hold, cluster.memory_sizes)
    if raised <= had_mb:
        return f"{died}, and no device of the pool that it may use has more. Use less memory."
    count += 1
    why = f"{died}; it waits for {format_gb(raised)} ({count} of {MOST_RAISES})."
    return Raise(raised, count, failure.attempt, why)


def apply_raise(job: Job, raised: Raise) -> Job:
    """Return the job with its raised bound, which is ours and not its owner's."""
    predicted = tuple(sorted({*job.predicted, "memory_mb"}))
    return replace(job, memory_mb=raised.bound_mb, predicted=predicted)


def format_gb(mb: float) -> str:
    return f"{mb / 1024:.3g} GB"
