"""Lines of the worker in the logs of runs: reasons once per change, in batches, and without harm."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fake_prefect import FakePrefect

from gpu_flows.prefect_api import worker_log
from gpu_flows.prefect_api.conventions import WORKER_LOGGER
from gpu_flows.prefect_api.waiting_log import REPEAT_AFTER_S, WaitingLog
from gpu_flows.prefect_api.worker_log import MOST_PER_REQUEST, WorkerLog
from gpu_flows.schedulers.model import Job, Reason


class Waiting:
    """One waiting job, its log, and a clock."""

    def __init__(self) -> None:
        self.active, self.now = True, 0.0
        self.reason: Reason | None = Reason("capacity", "All are busy.", "Wait.")
        self.prefect, self.job = FakePrefect(), Job(str(uuid4()))
        self._log = WorkerLog(self.prefect.client)
        self._rounds = WaitingLog(self, self._log, clock=lambda: self.now)

    def reasons(self, limit: int) -> Iterator[tuple[Job, Reason]]:
        return islice([(self.job, self.reason)] if self.reason else [], limit)

    def waits(self, job_id: str) -> bool:
        return bool(self.reason)

    def round(self, code: str = "", rounds: int = 1) -> list[str]:
        """All lines in the log after this many seconds of waiting with a reason of this code."""
        for _ in range(rounds):
            self.now += 1.0
            if code:
                self.reason = Reason(code, f"It is {code}.")
            self._rounds.write_round()
        asyncio.run(self._log.send())
        return [log["message"] for log in self.prefect.logs]


def test_a_job_that_starts_at_once_gets_no_line() -> None:
    waiting = Waiting()
    assert waiting.round() == []
    waiting.reason = None
    assert waiting.round() == []


def test_a_reason_is_written_once_with_what_helps() -> None:
    waiting = Waiting()
    assert waiting.round(rounds=200) == ["Waiting: All are busy. Wait."]
    (log,) = waiting.prefect.logs
    assert (log["name"], log["flow_run_id"]) == (WORKER_LOGGER, waiting.job.id)


def test_a_time_that_counts_down_repeats_no_line() -> None:
    waiting = Waiting()
    for left in range(100, 0, -1):
        waiting.reason = Reason("declined", f"It waits up to {left} s more.")
        waiting.round()
    assert waiting.round() == ["Waiting: It waits up to 99 s more."]


def test_another_reason_is_written_immediately() -> None:
    waiting = Waiting()
    waiting.round("capacity", rounds=2)
    assert waiting.round("held") == ["Waiting: It is capacity.", "Waiting: It is held."]


def test_a_reason_that_flips_every_second_is_written_once_a_minute() -> None:
    waiting = Waiting()
    waiting.round("capacity", rounds=2)
    for second in range(600):
        waiting.round("fragmented" if second % 2 else "capacity")
    lines = waiting.round()
    assert 600 / REPEAT_AFTER_S - 2 <= len(lines) <= 600 / REPEAT_AFTER_S + 3


def test_leaving_and_entering_the_queue_repeats_no_line() -> None:
    waiting = Waiting()
    for _ in range(5):
        waiting.round("capacity", rounds=2)
        waiting.reason = None
        waiting.round()
    assert len(waiting.round()) == 1


def test_a_worker_without_the_lease_writes_nothing() -> None:
    waiting = Waiting()
    waiting.active = False
    assert waiting.round(rounds=3) == []


def test_lines_wait_while_the_server_is_away_and_are_sent_in_order() -> None:
    prefect = FakePrefect()
    log, job_id = WorkerLog(prefect.client), str(uuid4())
    for number in range(MOST_PER_REQUEST + 5):
        log.write(job_id, str(number))
    prefect.failures = 1
    asyncio.run(log.send())
    assert prefect.logs == []
    asyncio.run(log.send())
    assert [entry["message"] for entry in prefect.logs] == [str(n) for n in range(MOST_PER_REQUEST + 5)]
    assert prefect.calls.count("create_logs") == 3, "lines are sent in batches"


def test_the_oldest_lines_are_dropped_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_log, "MOST_WAITING", 10)
    prefect = FakePrefect()
    log = WorkerLog(prefect.client)
    for number in range(25):
        log.write(str(uuid4()), str(number))
        if number == 20:
            prefect.failures = 1
            asyncio.run(log.send())
    asyncio.run(log.send())
    assert [entry["message"] for entry in prefect.logs] == [str(number) for number in range(15, 25)]


def refuse_large(prefect: FakePrefect, most_bytes: int) -> None:
    """Let the server refuse larger requests, as a proxy does."""
    accept = prefect.create_logs

    async def create_logs(logs: list[dict[str, Any]]) -> None:
        if len(json.dumps(logs)) > most_bytes:
            response = httpx.Response(413, request=httpx.Request("POST", "http://server/logs"))
            raise httpx.HTTPStatusError("too large", request=response.request, response=response)
        await accept(logs)

    prefect.create_logs = create_logs  # type: ignore[method-assign]


@pytest.mark.parametrize("most_bytes", [1_000_000, 100_000])
def test_many_long_lines_arrive_through_a_proxy(most_bytes: int) -> None:
    prefect = FakePrefect()
    log = WorkerLog(prefect.client)
    refuse_large(prefect, most_bytes)
    texts = [f"{number} " + "\u00e4" * 3900 for number in range(200)]
    for text in texts:
        log.write(str(uuid4()), text)
    asyncio.run(log.send())
    assert [entry["message"] for entry in prefect.logs] == texts


def test_a_note_replaces_a_line_that_the_server_refuses(caplog: pytest.LogCaptureFixture) -> None:
    prefect = FakePrefect()
    log = WorkerLog(prefect.client)
    refuse_large(prefect, 1000)
    for text in ("first", "x" * 2000, "last"):
        log.write(str(uuid4()), text)
    asyncio.run(log.send())
    first, note, last = [entry["message"] for entry in prefect.logs]
    assert (first, last) == ("first", "last")
    assert "refused this line of 2,000 characters" in note
    assert "HTTP 413" in caplog.text


def test_what_waits_is_sent_when_the_worker_closes() -> None:
    prefect = FakePrefect()
    log = WorkerLog(prefect.client)
    log.write(str(uuid4()), "last words", logging.ERROR)
    asyncio.run(log.close())
    [line] = prefect.logs
    assert (line["message"], line["level"]) == ("last words", logging.ERROR)
