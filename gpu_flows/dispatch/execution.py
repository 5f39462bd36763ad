"""A job on its way: from the plan that starts it, over its attempt, to the end that is reported.

A plan is a promise made before it can be kept: the devices of a job that it stops are given to
another one while the first still saves and leaves. So a execution begins by waiting until nobody who is
leaving holds any of its devices; and a job that moves has two executions for a while, of which the
second waits until the first is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_flows.dispatch.preemption import Preemption
from gpu_flows.runtimes.base import Attempt, Intent
from gpu_flows.schedulers.model import Device, Job, Progress, Reason


def _signal() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Execution:
    job: Job
    devices: tuple[Device, ...] = ()
    previous: Execution | None = None  # of the same job, and not over yet
    holds: bool = True  # whether the engine counts the devices as this execution's
    begun: bool = False  # it has waited for its devices, and is being claimed, launched, run or reported
    attempt: Attempt | None = None
    intent: Intent | None = None  # what it was asked to stop for
    leave: Preemption | None = None
    returns: Progress | None = None  # with what behind it the job waits again, now that the execution is over
    over: bool = False  # the job will not go on
    gone: asyncio.Future[None] = field(default_factory=_signal)  # nothing of it is on the devices any more
    interrupted: asyncio.Future[None] = field(default_factory=_signal)  # it was asked to stop
    task: asyncio.Task[None] | None = None

    def set_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def ask(self, intent: Intent) -> bool:
        """Note that it is to stop. Whether that is the first time: a job is not signalled twice, since a
        second signal may cut its saving short. To be cancelled counts more than to come back."""
        first = self.intent is None
        if first or intent == "cancel":
            self.intent = intent
        if not self.interrupted.done():
            self.interrupted.set_result(None)
        return first

    def is_in_the_way_of(self, other: Execution) -> bool:
        """Whether it still sits on devices that were promised to the other."""
        if self is other or self.holds or self.gone.done():
            return False
        return not {device.id for device in self.devices}.isdisjoint(device.id for device in other.devices)


async def room_for(execution: Execution, executions: Iterable[Execution]) -> bool:
    """Wait until the execution's devices are free and the job's previous execution has finished.
    False if the execution must not begin: it was interrupted meanwhile, or the job ended."""
    if execution.previous and execution.previous.task:
        await asyncio.wait(
            [execution.previous.task, execution.interrupted], return_when=asyncio.FIRST_COMPLETED
        )
    while not execution.interrupted.done():
        waits = [each.gone for each in executions if each.is_in_the_way_of(execution)]
        if not waits:
            break
        await asyncio.wait([*waits, execution.interrupted], return_when=asyncio.FIRST_COMPLETED)
    return not execution.interrupted.done() and not (execution.previous and execution.previous.over)


def awaited(execution: Execution, executions: Iterable[Execution]) -> Reason | None:
    """Why the execution has not begun yet, if it waits for others to leave."""
    if execution.begun or execution.interrupted.done():
        return None
    names = [each.job.name or each.job.id for each in executions if each.is_in_the_way_of(execution)]
    if execution.previous and not execution.previous.over:
        names.append("itself")
    if not names:
        return None
    whose = " and ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])
    return Reason("making_room", f"Room is being made for it: it waits for {whose} to save and leave.")
