"""An attempt that is asked to leave its devices, and what for.

Three kinds. One that is *preempted* waits again; one that is *moved* goes on at once on other devices,
and one that is *resized* does so on more or fewer of them. Whatever the kind, the job is asked to
save and to leave, and goes on from what it saved as another attempt of the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_flows.schedulers.model import Running, Start

Kind = Literal["preempted", "moved", "resized"]


@dataclass(frozen=True, slots=True)
class Preemption:
    """Why an attempt was asked to leave."""

    asked: float
    kind: Kind
    policy: str
    room_for: tuple[str, ...] = ()  # the jobs that get its devices, by id
    why: str = ""  # in words, for the run's owner


def leave(running: Running, starts: Sequence[Start], policy: str, now: float) -> Preemption:
    """What a plan with these starts means for a job that it stops."""
    held = {device.id for device in running.devices}
    again = next((each for each in starts if each.job.id == running.job.id), None)
    others = [each.job for each in starts if each is not again and held & {d.id for d in each.devices}]
    by = f"policy {policy!r}"
    if others:
        by = f"{' and '.join(job.name or job.id for job in others[:3])}, by {by}"
    if again is None:
        kind: Kind = "preempted"
        why = f"Made room for {by}." if others else f"Stopped by {by}."
        why += " Goes on from its checkpoint when devices are free."
    else:
        before, after = len(running.devices), len(again.devices)
        kind = "moved" if before == after else "resized"
        where = ", ".join(dict.fromkeys(device.node for device in again.devices))
        size = "" if before == after else f" from {before} to {after} GPUs"
        what = "Moves" if before == after else "Changes"
        why = f"{what}{size} for {by}." if others else f"{what}{size}, by {by}."
        why += f" Goes on from its checkpoint on {where}."
    return Preemption(now, kind, policy, tuple(job.id for job in others), why)
