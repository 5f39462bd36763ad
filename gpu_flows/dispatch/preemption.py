"""Why a running attempt is stopped before its end.

A policy has three kinds of reasons. A *preempted* job waits again. A *moved* job continues on other devices,
and a *resized* job continues on more or fewer devices. A person can *suspend* a job, which then waits until
someone resumes it. In each case the job saves a checkpoint, stops, and continues from the checkpoint as the
next attempt of the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_flows.schedulers.model import Running, Start

Kind = Literal["preempted", "moved", "resized", "suspended"]


@dataclass(frozen=True, slots=True)
class Preemption:
    """The decision to stop an attempt."""

    requested: float
    kind: Kind
    policy: str
    room_for: tuple[str, ...] = ()  # the ids of the jobs that get its devices
    why: str = ""  # for the run's owner


def describe_suspension(policy: str, now: float) -> Preemption:
    """Return what it means that a person suspends a running job."""
    why = "Suspended. It continues from its checkpoint after it is resumed."
    return Preemption(now, "suspended", policy, (), why)


def describe_preemption(running: Running, starts: Sequence[Start], policy: str, now: float) -> Preemption:
    """Return what a plan with these starts means for a job that it stops."""
    devices = {device.id for device in running.devices}
    restart = next((start for start in starts if start.job.id == running.job.id), None)
    others = [
        start.job
        for start in starts
        if start is not restart and devices & {device.id for device in start.devices}
    ]
    names = " and ".join(job.name or job.id for job in others[:3])
    by = f" for {names} by policy {policy!r}." if others else f" by policy {policy!r}."
    if restart is None:
        kind: Kind = "preempted"
        why = f"Preempted{by} It continues from its checkpoint when devices are free."
    else:
        before, after = len(running.devices), len(restart.devices)
        kind = "moved" if before == after else "resized"
        change = "Moved" if before == after else f"Resized from {before} to {after} GPUs"
        nodes = ", ".join(dict.fromkeys(device.node for device in restart.devices))
        why = f"{change}{by} It continues from its checkpoint on {nodes}."
    return Preemption(now, kind, policy, tuple(job.id for job in others), why)
