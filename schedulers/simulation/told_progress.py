"""What running jobs tell of their progress in a simulation: how much is left, at given amounts of work."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SAME_WORK_S = 1e-6  # a job that stops at an amount of work and goes on there does not tell it twice


@dataclass(frozen=True, slots=True, order=True)
class Told:
    """Both are seconds of work on the devices that the job asked for."""

    work_s: float  # done when it was told
    left_s: float  # still to do, as far as was known then


class ToldProgress:
    """What each job tells next. It tells the same at the same amount of work, whatever its attempts are."""

    def __init__(self, told: Mapping[str, Sequence[Told]] | None = None) -> None:
        self._told = {job_id: sorted(each) for job_id, each in (told or {}).items()}
        self._reached: dict[str, float] = {}  # job id -> the work up to which all is told

    def find_next(self, job_id: str) -> Told | None:
        told = self._told.get(job_id, ())
        reached = self._reached.get(job_id, -math.inf)
        at = bisect_right(told, reached + SAME_WORK_S, key=lambda each: each.work_s)
        return told[at] if at < len(told) else None

    def note(self, job_id: str, work_s: float) -> None:
        """Note that all is told up to this amount of work."""
        self._reached[job_id] = work_s

    def resume(self, job_id: str, work_s: float) -> None:
        """Note that an attempt begins with this much work done: what was told of lost work is told again."""
        if job_id in self._reached:
            self._reached[job_id] = min(self._reached[job_id], work_s)
