"""One job on its way from the plan that starts it, through its attempt, to its reported end.

A plan gives the devices of a preempted job to another job immediately, although the preempted job first has
to save and stop. An execution therefore begins by waiting until its devices are released. A job that is
moved has two executions for a while; the second waits until the first has finished.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gpu_flows.dispatch.preemption import Preemption
from gpu_flows.runtimes.base import Attempt, Intent
from gpu_flows.schedulers.model import Device, Job, Progress


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Execution:
    job: Job
    devices: tuple[Device, ...] = ()
    previous: Execution | None = None  # an execution of the same job that has not finished yet
    holds_devices: bool = True  # whether the engine counts the devices as this execution's
    done_waiting: bool = False  # it no longer waits for its devices
    attempt: Attempt | None = None
    stop_intent: Intent | None = None  # why it was asked to stop
    preemption: Preemption | None = None
    requeue_with: Progress | None = None  # set if the job waits again when this execution has finished
    expected_s: float | None = None  # the job's time on devices, corrected by its progress
    job_ended: bool = False  # the job does not continue
    released_at: float | None = None
    released: asyncio.Future[None] = field(default_factory=_new_future)  # its devices are free
    stop_requested: asyncio.Future[None] = field(default_factory=_new_future)
    task: asyncio.Task[None] | None = None

    def request_stop(self, intent: Intent) -> bool:
        """Record that it has to stop. Returns whether this is the first request: a job gets one signal only,
        because a second signal may interrupt its saving. "cancel" overrides "reschedule"."""
        is_first = self.stop_intent is None
        if is_first or intent == "cancel":
            self.stop_intent = intent
        if not self.stop_requested.done():
            self.stop_requested.set_result(None)
        return is_first

    def mark_released(self, now: float) -> None:
        if not self.released.done():
            self.released.set_result(None)
            self.released_at = now

    def blocks(self, other: Execution) -> bool:
        """Whether it still occupies devices that a plan has given to the other execution."""
        if self is other or self.holds_devices or self.released.done():
            return False
        return not {device.id for device in self.devices}.isdisjoint(device.id for device in other.devices)
