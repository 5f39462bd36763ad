"""Writes into the logs of waiting runs why they wait, one line for each change of the reason.

A reason may change back and forth every second. A code that a run's log has not shown yet is written
immediately; one that it has shown before at most once a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_flows.prefect_api.waiting_notes import MOST_LOOKED_AT, ROUND_S, WaitingJobs
from gpu_flows.prefect_api.worker_log import WorkerLog

REPEAT_AFTER_S = 60.0


@dataclass(slots=True)
class Shown:
    """What the log of one run has shown."""

    code: str = ""
    at: float = 0.0
    codes: set[str] = field(default_factory=set)


class WaitingLog:
    def __init__(
        self, waiting: WaitingJobs, log: WorkerLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._waiting, self._log, self._clock = waiting, log, clock
        self._shown: dict[str, Shown] = {}
        self._waited_last_round: set[str] = set()

    async def keep_writing(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            self.write_round()

    def write_round(self) -> None:
        """Write the changes since the last round. A job that has not waited for a round gets no line."""
        if not self._waiting.active:
            return
        now, waiting = self._clock(), set()
        for job, reason in self._waiting.reasons(MOST_LOOKED_AT):
            waiting.add(job.id)
            if job.id in self._waited_last_round and self._is_news(job.id, reason.code, now):
                self._log.write(job.id, f"Waiting: {reason}")
        self._waited_last_round = waiting
        self._shown = {
            job_id: shown
            for job_id, shown in self._shown.items()
            if job_id in waiting or now - shown.at < REPEAT_AFTER_S
        }

    def _is_news(self, job_id: str, code: str, now: float) -> bool:
        shown = self._shown.setdefault(job_id, Shown())
        if shown.code == code or (code in shown.codes and now - shown.at < REPEAT_AFTER_S):
            return False
        shown.code, shown.at = code, now
        shown.codes.add(code)
        return True
