"""GPU memory at the end of an attempt: a job that ran out of it waits for more; what was used is recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from gpu_flows.checkpoints import contract
from gpu_flows.dispatch.attempt_facts import EndedAttempt, find_peaks
from gpu_flows.dispatch.gateway import Gateway
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.dispatch.memory_raises import OutOfMemory, Raise, decide_raise
from gpu_flows.prediction.memory_failure import MemoryFailure, find_memory_failure
from gpu_flows.runtimes.base import End, Launch
from gpu_flows.schedulers.cluster.state import Cluster


def find_failure(launch: Launch, end: End) -> MemoryFailure | None:
    """Return why an attempt seems to have run out of GPU memory; None if it does not. Its exit code is
    certain, the end of its output is not: a flow that prints an error may go on and complete."""
    completed = end.exit_code == 0 and not launch.handles_intents
    if completed or end.oom_killed:
        return None
    found = find_memory_failure(end.tail)
    if found is None and end.exit_code == contract.OUT_OF_MEMORY:
        return MemoryFailure(f"It ended with exit code {contract.OUT_OF_MEMORY}.")
    return found


@dataclass(eq=False)
class MemoryWatch:
    cluster: Cluster
    gateway: Gateway
    job_store: JobStore
    log: logging.Logger
    record: Callable[..., None]
    take_peaks: Callable[[Launch], dict[str, float]]  # MiB that an attempt used at most, by device
    on_attempt_end: Callable[[EndedAttempt], None]

    def may_raise(self, launch: Launch) -> bool:
        """Return whether the job will wait for more if it runs out of memory in this attempt."""
        return bool(launch.devices) and isinstance(self._decide(launch, None), Raise)

    def raise_bound(self, launch: Launch, failure: MemoryFailure) -> Raise | str:
        """Return the raised bound of a job that ran out of memory, or why it has failed. The decision is
        stored first, so that the next worker can carry it out."""
        raised = self._decide(launch, failure.needed_mb)
        if isinstance(raised, Raise):
            self.job_store.save_raise(launch.job.id, raised)
        return raised

    def announce(self, launch: Launch, decision: Raise | str) -> None:
        """Tell what was decided on a job that ran out of memory, once it is certain that it died of it."""
        if isinstance(decision, Raise):  # its owner reads that in the state in which it waits
            self.log.info("Run %s: %s", launch.job.name, decision.why)
        elif decision:
            self.gateway.tell(launch.job, decision)
            self.log.info("Run %s: %s", launch.job.name, decision)

    def _decide(self, launch: Launch, needed_mb: float | None) -> Raise | str:
        shares = launch.memory_share_mb > 0
        failure = OutOfMemory(launch.job, launch.devices, launch.attempt, shares, needed_mb)
        return decide_raise(failure, self.job_store.load_raise(launch.job.id), self.cluster)

    async def record_end(
        self, launch: Launch, outcome: str, ran_s: float, failure: MemoryFailure | None
    ) -> None:
        """Record how much memory an ended attempt used, and let predictors learn from it. An error in this is
        only logged: the attempt must still be forgotten, and its job may have to wait again."""
        try:
            peaks = await asyncio.to_thread(find_peaks, launch, self.take_peaks(launch))
        except Exception:
            self.log.exception("The memory that run %s used is not recorded.", launch.job.name)
            peaks = []
        self.record(*peaks)
        peak_mb = max((peak.peak_mb for peak in peaks), default=None)
        needed_mb = failure.needed_mb or launch.memory_share_mb or None if failure else None
        try:
            self.on_attempt_end(EndedAttempt(launch, outcome, ran_s, peak_mb, needed_mb))
        except Exception:
            self.log.exception("Nothing is learned from run %s.", launch.job.name)
