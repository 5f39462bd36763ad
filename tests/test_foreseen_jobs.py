"""The time in the message of a waiting run: about when it starts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from gpu_flows.common.clock import describe_time
from gpu_flows.schedulers.forecast.eta import Eta
from gpu_flows.schedulers.model import Job, Reason
from gpu_flows.worker.foreseen_jobs import ForeseenJobs

NOON = time.mktime((2026, 3, 2, 12, 0, 0, 0, 0, -1))  # a Monday
ZONE = time.strftime("%Z", time.localtime(NOON))


class Queue:
    active = True

    def reasons(self, limit: int) -> Iterator[tuple[Job, Reason]]:
        yield Job("a"), Reason("capacity", "0 such are free.", "Wait.")
        yield Job("b"), Reason("held", "It is held.")

    def waits(self, job_id: str) -> bool:
        return True


def test_the_message_tells_about_when_the_job_starts_and_changes_only_if_that_is_noticeable() -> None:
    now, starts = NOON, NOON + 8400.0

    def find_eta(job_id: str) -> Eta | None:
        return Eta(starts, starts, starts, starts) if job_id == "a" else None

    jobs = ForeseenJobs(Queue(), find_eta, clock=lambda: now)

    def read() -> str:
        (_, first), (_, second) = jobs.reasons(10)
        assert str(second) == "It is held."
        return str(first)

    assert read() == f"0 such are free. It starts about 14:20 {ZONE}. Wait."
    starts += 600
    assert "14:20" in read()
    starts += 3600
    assert "15:30" in read()
    now, starts = NOON + 3600 * 3.48, NOON + 3600 * 3.5 + 30
    assert "15:30" in read(), "it is less than a minute off"
    now = starts = NOON + 3600 * 3.6
    assert "about 15:36:00" in read(), "the time that was told has passed"


def test_times_are_shown_as_people_read_them() -> None:
    shown = [describe_time(NOON + after, NOON) for after in (45, 600, 86_400, 7 * 86_400)]
    assert shown == ["12:00:45", "12:10", "Tue 12:00", "2026-03-09 12:00"]


@pytest.mark.parametrize("when", [1e12, 1e300, math.inf, math.nan])
def test_a_time_that_no_calendar_has_is_shown_too(when: float) -> None:
    assert describe_time(when, NOON) == "after the year 9999"
    jobs = ForeseenJobs(Queue(), lambda job_id: Eta(when, when, when, when), clock=lambda: NOON)
    assert len(list(jobs.reasons(10))) == 2
