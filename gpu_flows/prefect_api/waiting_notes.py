"""Shows on waiting runs why they wait, with few requests to the server.

A note costs the server several requests. So a run gets its first note only after it has waited for a
round, and another one only when the code of the reason changes, or when it is near the head of the queue
and its reason has changed otherwise. Runs beyond the first `MOST_LOOKED_AT` places get theirs when they have
moved up. The current rank of every job is in `gpu-flows queue`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol
from uuid import UUID

import httpx
from prefect.exceptions import PrefectException

from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.schedulers.model import Job, Reason

ROUND_S = 1.0
MOST_PER_ROUND = 10
PAUSE_FACTOR = 9.0  # after each note, pause for this multiple of the time that the server took to write it
HEAD = 10  # runs whose rank is kept up to date
REFRESH_HEAD_S = 30.0
MOST_LOOKED_AT = 500  # places of the queue


class WaitingJobs(Protocol):
    """The waiting jobs of a pool, in the queue or held back from it."""

    @property
    def active(self) -> bool:
        """Whether this worker acts for the pool."""
        ...

    def reasons(self, limit: int) -> Iterator[tuple[Job, Reason]]: ...

    def waits(self, job_id: str) -> bool: ...


@dataclass(slots=True)
class Note:
    reason: Reason
    written_at: float


class WaitingNotes:
    def __init__(self, waiting: WaitingJobs, states: RunStates) -> None:
        self._waiting, self._states = waiting, states
        self._notes: dict[str, Note] = {}
        self._waited_last_round: set[str] = set()

    async def keep_writing(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.write_round()

    async def write_round(self) -> None:
        """Write the notes that are due, one after the other."""
        for job_id, reason in self._find_due():
            began = time.monotonic()
            self._notes[job_id] = Note(reason, began)
            with contextlib.suppress(httpx.HTTPError, PrefectException):
                await self._states.show_reason(UUID(job_id), reason, self._still_waits)
            await asyncio.sleep(PAUSE_FACTOR * (time.monotonic() - began))

    def _still_waits(self, run_id: UUID) -> bool:
        return self._waiting.active and self._waiting.waits(str(run_id))

    def _find_due(self) -> list[tuple[str, Reason]]:
        """Return the jobs that need a note, from the head of the queue: those that have waited for a round
        and whose note is missing or stale."""
        if not self._waiting.active:
            return []
        reasons = list(self._waiting.reasons(MOST_LOOKED_AT))
        waiting = {job.id for job, _ in reasons}
        self._notes = {job_id: note for job_id, note in self._notes.items() if job_id in waiting}
        due = (
            (job.id, reason)
            for rank, (job, reason) in enumerate(reasons)
            if job.id in self._waited_last_round and self._is_stale(job.id, reason, rank)
        )
        chosen = list(islice(due, MOST_PER_ROUND))
        self._waited_last_round = waiting
        return chosen

    def _is_stale(self, job_id: str, reason: Reason, rank: int) -> bool:
        note = self._notes.get(job_id)
        if note is None or note.reason.code != reason.code:
            return True
        is_old = time.monotonic() - note.written_at > REFRESH_HEAD_S
        return rank < HEAD and is_old and note.reason != reason
