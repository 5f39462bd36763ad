"""Learns slowdowns from recorded runs, some of which shared a device with others.

A run that shared its devices is compared with runs of the same kind on the same GPU model that did not, by
the time that a unit of work took. Jobs of one kind run alike, so what it took longer is put down to the jobs
beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from gpu_flows.schedulers.prediction.interference import Interference

ALONE = 0.05  # a run that shared its devices for a smaller part of its time counts as alone
BESIDE = 0.5  # a run that was there for at least this part of another one's time slowed it down
LEAST_ALONE = 3  # runs alone that make a comparison


class Run(NamedTuple):
    """An attempt of a job, from its start to its end."""

    kind: str
    model: str  # of its devices
    devices: frozenset[str]
    started: float
    ended: float
    unit: str = ""  # of work: only runs with the same unit are compared
    amount: float = 1.0  # of work
    is_whole: bool = True  # whether it did all the work of its job; else it only disturbs others

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def pace(self) -> float:
        """Seconds for a unit of work."""
        return self.seconds / self.amount

    @property
    def comparable(self) -> tuple[object, ...]:
        """What runs that are compared have in common."""
        return (self.kind, self.model, len(self.devices), self.unit)


def learn_from_runs(known: Interference, runs: Sequence[Run]) -> int:
    """Teach what these runs show. Return from how many of them something was learned."""
    overlaps = _find_overlaps(runs)
    measured = [(run, shared) for run, shared in zip(runs, overlaps, strict=True) if run.is_whole]
    alone: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for run, shared in measured:
        if run.seconds > 0 and max(shared.values(), default=0.0) < ALONE * run.seconds:
            alone[run.comparable].append(run.pace)
    usual = {like: median(paces) for like, paces in alone.items() if len(paces) >= LEAST_ALONE}
    lessons = []
    for run, shared in measured:
        beside = [other for other, seconds in shared.items() if seconds >= BESIDE * run.seconds > 0]
        if beside and run.comparable in usual:
            lessons.append((run, sorted(runs[other].kind for other in beside)))
    for run, kinds in sorted(lessons, key=lambda lesson: len(lesson[1])):  # pairs tell who disturbs how much
        known.learn(run.kind, kinds, run.model, run.pace / usual[run.comparable])
    return len(lessons)


def _find_overlaps(runs: Sequence[Run]) -> list[dict[int, float]]:
    """Return for each run with which others it shared a device, and for how many seconds."""
    found: list[dict[int, float]] = [{} for _ in runs]
    by_device: dict[str, list[int]] = defaultdict(list)
    for number in sorted(range(len(runs)), key=lambda number: runs[number].started):
        for device in runs[number].devices:
            by_device[device].append(number)
    for numbers in by_device.values():
        active: list[int] = []
        for number in numbers:
            run = runs[number]
            active = [other for other in active if runs[other].ended > run.started]
            for other in active:
                shared = min(run.ended, runs[other].ended) - run.started
                found[number][other] = found[other][number] = shared
            active.append(number)
    return found
