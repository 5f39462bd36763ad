"""The waiting jobs with reasons that also tell about when each will start.

A note on a run costs the server several requests, so the time in it stays as it is until it is noticeably
wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from gpu_flows.common.clock import describe_time
from gpu_flows.prefect_api.waiting_notes import WaitingJobs
from gpu_flows.schedulers.forecast.eta import Eta
from gpu_flows.schedulers.model import Job, Reason

MOVED, MOVED_S = 0.2, 60.0  # of the time until then, and at least


class ForeseenJobs:
    """`WaitingJobs` with these times."""

    def __init__(
        self,
        waiting: WaitingJobs,
        find_eta: Callable[[str], Eta | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._waiting, self._find_eta, self._clock = waiting, find_eta, clock
        self._told: dict[str, tuple[float, str]] = {}  # the start, and its text

    @property
    def active(self) -> bool:
        return self._waiting.active

    def waits(self, job_id: str) -> bool:
        return self._waiting.waits(job_id)

    def reasons(self, limit: int) -> Iterator[tuple[Job, Reason]]:
        told, self._told = self._told, {}
        for job, reason in self._waiting.reasons(limit):
            eta = self._find_eta(job.id)
            if eta is None:
                yield job, reason
                continue
            self._told[job.id] = kept = self._keep(told.get(job.id), eta.start_p50)
            yield job, replace(reason, summary=f"{reason.summary} It starts about {kept[1]}.")

    def _keep(self, told: tuple[float, str] | None, start: float) -> tuple[float, str]:
        """Return what was told before, unless it is noticeably wrong by now."""
        now = self._clock()
        if told and abs(start - told[0]) <= max(MOVED_S, MOVED * (start - now)) and told[0] > now:
            return told
        return start, describe_time(max(start, now), now, with_zone=True)
