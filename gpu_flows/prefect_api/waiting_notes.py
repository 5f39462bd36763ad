"""Shows on waiting runs why they wait, without burdening the server.

A note costs the server a few requests, so it is written when a run has waited a moment, and again
only when the kind of reason changes or a run near the head of the line has moved up. The exact
place in line at any moment is in `gpu-flows queue`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from uuid import UUID

import httpx
from prefect.exceptions import PrefectException

from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.schedulers.model import Reason

EVERY_S = 1.0
AT_ONCE = 10  # notes in one round
IDLE_SHARE = 9.0  # a server that takes long to write a note is left alone for nine times as long
HEAD = 10  # runs whose place in line is kept up to date
REFRESH_HEAD_S = 30.0


@dataclass(slots=True)
class Note:
    reason: Reason
    at: float


class WaitingNotes:
    def __init__(self, dispatcher: Dispatcher, states: RunStates) -> None:
        self._dispatcher, self._states = dispatcher, states
        self._notes: dict[str, Note] = {}
        self._seen: set[str] = set()

    async def keep_writing(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            for job_id, reason in self._due():
                began = time.monotonic()
                self._notes[job_id] = Note(reason, began)
                with contextlib.suppress(httpx.HTTPError, PrefectException):
                    await self._states.explain(UUID(job_id), reason, self._still_waits)
                await asyncio.sleep(IDLE_SHARE * (time.monotonic() - began))

    def _still_waits(self, run_id: UUID) -> bool:
        return self._dispatcher.active and self._dispatcher.waits(str(run_id))

    def _due(self) -> list[tuple[str, Reason]]:
        """The runs to write on in this round: those that already waited in the last one."""
        if not self._dispatcher.active:
            return []
        reasons = list(self._dispatcher.reasons())
        waiting = {job.id for job, _ in reasons}
        self._notes = {job_id: note for job_id, note in self._notes.items() if job_id in waiting}
        due: list[tuple[str, Reason]] = []
        for place, (job, reason) in enumerate(reasons):
            if job.id in self._seen and self._stale(job.id, reason, place):
                due.append((job.id, reason))
                if len(due) == AT_ONCE:
                    break
        self._seen = waiting
        return due

    def _stale(self, job_id: str, reason: Reason, place: int) -> bool:
        note = self._notes.get(job_id)
        if note is None or note.reason.code != reason.code:
            return True
        old = time.monotonic() - note.at > REFRESH_HEAD_S
        return place < HEAD and old and note.reason != reason
