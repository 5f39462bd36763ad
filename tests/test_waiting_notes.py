"""Notes on waiting runs: which are written, when again, and never on a run that no longer waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pytest
from fake_prefect import FakePrefect
from prefect.client.schemas.objects import FlowRun

from gpu_flows.prefect_api import waiting_notes
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.prefect_api.waiting_notes import HEAD, MOST_PER_ROUND, WaitingNotes
from gpu_flows.schedulers.model import Job, Reason


@dataclass
class FakeQueue:
    """The waiting jobs of a pool."""

    active: bool = True
    queue: list[tuple[Job, Reason]] = field(default_factory=list)

    def reasons(self, limit: int) -> Iterator[tuple[Job, Reason]]:
        return islice(self.queue, limit)

    def waits(self, job_id: str) -> bool:
        return any(job.id == job_id for job, _ in self.queue)


class Notes:
    """Waiting notes for a queue of fake runs."""

    def __init__(self, runs: int = 1) -> None:
        self.prefect, self.waiting = FakePrefect(), FakeQueue()
        states = RunStates(self.prefect.client)
        self.notes = WaitingNotes(self.waiting, states)
        self.runs = [self.prefect.add_run() for _ in range(runs)]
        self.wait_for("busy")

    def wait_for(self, message: str, code: str = "capacity") -> None:
        """All runs wait for this reason from now on."""
        self.waiting.queue = [(Job(str(run.id)), Reason(code, message)) for run in self.runs]

    def round(self) -> None:
        asyncio.run(self.notes.write_round())

    def written(self, run: FlowRun) -> list[str]:
        states = self.prefect.history[run.id]
        return [str(state.message) for state in states if state.name == "AwaitingGPU"]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_notes, "PAUSE_FACTOR", 0.0)


def test_a_run_gets_its_note_in_the_second_round_and_only_once() -> None:
    notes = Notes()
    counts = []
    for _ in range(3):
        notes.round()
        counts.append(len(notes.written(notes.runs[0])))
    assert counts == [0, 1, 1]


def test_a_new_reason_code_is_written_immediately() -> None:
    notes = Notes()
    notes.round()
    notes.round()
    notes.wait_for("3 of 4 free", code="fragmented")
    notes.round()
    assert [message.split(".")[0] for message in notes.written(notes.runs[0])] == ["busy", "3 of 4 free"]


def test_a_new_message_is_written_later_and_only_near_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(HEAD + 1)
    for _ in range(3):
        notes.round()
    notes.wait_for("still busy")
    notes.round()
    assert [len(notes.written(run)) for run in notes.runs] == [1] * (HEAD + 1), "the notes are recent"
    monkeypatch.setattr(waiting_notes, "REFRESH_HEAD_S", 0.0)
    notes.round()
    assert [len(notes.written(run)) for run in notes.runs] == [2] * HEAD + [1]


def test_a_round_writes_a_limited_number_of_notes() -> None:
    notes = Notes(MOST_PER_ROUND + 5)
    totals = []
    for _ in range(3):
        notes.round()
        totals.append(sum(len(notes.written(run)) for run in notes.runs))
    assert totals == [0, MOST_PER_ROUND, MOST_PER_ROUND + 5]


def test_no_note_is_written_on_a_run_that_no_longer_waits() -> None:
    notes = Notes(2)
    notes.round()
    started = notes.runs[1]
    read = notes.prefect.read_flow_run

    async def start_meanwhile(run_id: object) -> FlowRun:
        notes.waiting.queue = [entry for entry in notes.waiting.queue if entry[0].id != str(started.id)]
        return await read(run_id)  # type: ignore[arg-type]

    notes.prefect.read_flow_run = start_meanwhile  # type: ignore[method-assign, assignment]
    notes.round()
    assert [len(notes.written(run)) for run in notes.runs] == [1, 0]


def test_a_worker_without_the_lease_writes_no_notes() -> None:
    notes = Notes()
    notes.round()
    notes.waiting.active = False
    notes.round()
    assert notes.written(notes.runs[0]) == []


def test_a_server_that_is_away_costs_only_the_note() -> None:
    notes = Notes(2)
    notes.round()
    notes.prefect.failures = 1
    notes.round()
    assert [len(notes.written(run)) for run in notes.runs] == [0, 1]
