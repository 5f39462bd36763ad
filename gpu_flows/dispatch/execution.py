"""A job on its way: from the plan that starts it, over its attempt, to the end that is reported.

A plan is a promise made before it can be kept: the devices of a job that it stops are given to
another one while the first still saves and leaves. So a ride begins by waiting until nobody who is
leaving holds any of its devices; and a job that moves has two rides for a while, of which the
second waits until the first is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_flows.dispatch.preemption import Leave
from gpu_flows.runtimes.base import Attempt, Intent
from gpu_flows.schedulers.model import Device, Job, Progress, Reason


def _signal() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Ride:
    job: Job
    devices: tuple[Device, ...] = ()
    former: Ride | None = None  # of the same job, and not over yet
    holds: bool = True  # whether the engine counts the devices as this ride's
    boarded: bool = False  # it has waited for its devices, and is being claimed, launched, run or reported
    attempt: Attempt | None = None
    intent: Intent | None = None  # what it was asked to stop for
    leave: Leave | None = None
    returns: Progress | None = None  # with what behind it the job waits again, now that the ride is over
    over: bool = False  # the job will not go on
    gone: asyncio.Future[None] = field(default_factory=_signal)  # nothing of it is on the devices any more
    stirred: asyncio.Future[None] = field(default_factory=_signal)  # it was asked to stop
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
        if not self.stirred.done():
            self.stirred.set_result(None)
        return first

    def is_in_the_way_of(self, other: Ride) -> bool:
        """Whether it still sits on devices that were promised to the other."""
        if self is other or self.holds or self.gone.done():
            return False
        return not {device.id for device in self.devices}.isdisjoint(device.id for device in other.devices)


async def room_for(ride: Ride, rides: Iterable[Ride]) -> bool:
    """Returns when nobody sits on the ride's devices any more and its job's former ride is over. False if
    it is not to begin after all: it was asked to stop meanwhile, or its job ended."""
    if ride.former and ride.former.task:
        await asyncio.wait([ride.former.task, ride.stirred], return_when=asyncio.FIRST_COMPLETED)
    while not ride.stirred.done():
        waits = [each.gone for each in rides if each.is_in_the_way_of(ride)]
        if not waits:
            break
        await asyncio.wait([*waits, ride.stirred], return_when=asyncio.FIRST_COMPLETED)
    return not ride.stirred.done() and not (ride.former and ride.former.over)


def awaited(ride: Ride, rides: Iterable[Ride]) -> Reason | None:
    """Why the ride has not begun yet, if it waits for others to leave."""
    if ride.boarded or ride.stirred.done():
        return None
    names = [each.job.name or each.job.id for each in rides if each.is_in_the_way_of(ride)]
    if ride.former and not ride.former.over:
        names.append("itself")
    if not names:
        return None
    whose = " and ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])
    return Reason("making_room", f"Room is being made for it: it waits for {whose} to save and leave.")
