"""The views on queues, idle devices, energy and users, on small histories with numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from analytics_history import History, T

from gpu_flows.analytics.facts import DeviceSeen, JobSubmitted, Sampled


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def submit(
    history: History, job_id: str, at: float, gpus: int = 1, memory_mb: int = 0, user: str = "ann"
) -> None:
    history.record(
        JobSubmitted(job_id, "pool", job_id, "f", "d", user, "[]", gpus, memory_mb, 0, None, None, T + at, "")
    )


# --- the queue ---


def queue(history: History) -> list[tuple[float, int, int]]:
    return history.query(f"select epoch(time) - {T}, waiting, running from queue_over_time order by time")


def test_a_job_waits_then_runs_and_waits_again_when_it_is_stopped(history: History) -> None:
    history.job("a", 0)
    history.start("a", 5)
    history.stop("a", 10, outcome="preempted")
    history.start("a", 20, attempt=2)
    history.stop("a", 30, attempt=2)
    history.end("a", 30)
    history.job("b", 5)  # at the time at which a starts
    history.end("b", 40, "cancelled")
    assert queue(history) == [
        (0, 1, 0), (5, 1, 1), (10, 2, 0), (20, 1, 1), (30, 1, 0), (40, 0, 0)
    ]  # fmt: skip


def test_a_job_that_still_waits_or_runs_is_never_subtracted(history: History) -> None:
    history.job("a", 0)
    history.start("a", 10)
    history.job("b", 20)
    history.job("last fact", 30)
    assert queue(history) == [(0, 1, 0), (10, 0, 1), (20, 1, 1), (30, 2, 1)]


def test_a_suspended_job_neither_waits_nor_runs(history: History) -> None:
    history.job("a", 0)
    history.start("a", 0)
    history.stop("a", 10, outcome="suspended")
    history.start("a", 50, attempt=2)
    history.job("last fact", 60)
    assert queue(history) == [(0, 0, 1), (10, 0, 0), (50, 0, 1), (60, 1, 1)]


def test_a_job_that_ended_does_not_wait_for_the_report_of_its_end(history: History) -> None:
    history.job("a", 0)
    history.start("a", 0)
    history.stop("a", 10)
    history.end("a", 11)
    history.job("b", 0)
    history.start("b", 0)
    history.end("b", 10)
    history.stop("b", 12)
    assert queue(history) == [(0, 0, 2), (10, 0, 0)]


# --- idle devices ---


def fragments(history: History) -> list[tuple[float, float, int, float]]:
    return history.query(
        f"select epoch(since) - {T}, epoch(until) - {T}, idle_devices, idle_device_s"
        " from fragmentation order by since"
    )


def test_devices_are_idle_while_together_they_are_enough_for_a_waiting_job(history: History) -> None:
    for device, node in (("g0", "n0"), ("g1", "n1"), ("g2", "n1")):
        history.device(device, node=node)
    submit(history, "a", 0)
    history.start("a", 0, "g0")
    submit(history, "b", 0)
    history.start("b", 0, "g1")
    submit(history, "pair", 10, gpus=2)  # g2 alone is not enough
    history.stop("a", 20)  # g0 and g2 are enough, on two nodes
    history.end("a", 20)
    submit(history, "small", 25)  # the same devices count once
    history.health("g2", 30, "sick")  # only small fits now
    history.start("small", 35, "g0")
    history.stop("b", 50)
    history.end("b", 50)
    history.health("g2", 55, "healthy")  # g1 and g2
    history.start("pair", 60, "g1", "g2")
    submit(history, "last fact", 100, gpus=9)
    assert fragments(history) == [(20, 30, 2, 20), (30, 35, 1, 5), (55, 60, 2, 10)]


def test_a_device_with_too_little_memory_is_not_idle(history: History) -> None:
    for device, memory_mb in (("small", 8_000), ("large", 24_000), ("huge", 80_000)):
        history.record(DeviceSeen(device, "pool", "n0", 0, "m", memory_mb, T))
    submit(history, "two", 0, gpus=2, memory_mb=16_000)  # large and huge
    history.start("two", 10, "large", "huge")
    submit(history, "one", 20, memory_mb=16_000)  # only small is free
    submit(history, "any", 30, gpus=1, memory_mb=1_000)
    history.end("any", 40, "cancelled")
    history.stop("two", 50)
    history.end("two", 50)
    submit(history, "last fact", 60, gpus=0)
    assert fragments(history) == [(0, 10, 2, 20), (30, 40, 1, 10), (50, 60, 2, 20)]


def test_nothing_is_idle_in_an_empty_warehouse(history: History) -> None:
    assert fragments(history) == []
    assert queue(history) == []


# --- users ---


def test_gpu_hours_split_a_shared_device_evenly(history: History) -> None:
    history.device("g0")
    history.device("g1")
    submit(history, "a", 0, user="ann")
    submit(history, "b", 0, user="bob")
    submit(history, "c", 0, user="bob")
    history.start("a", 0, "g0", "g1")
    history.start("b", 1800, "g0")
    history.stop("a", 3600)
    history.stop("b", 5400)
    history.start("c", 5400, "g0")
    submit(history, "last fact", 7200)
    # g0: a 1800 s alone, a and b 1800 s shared, b 1800 s alone; c holds it until the last fact; g1: a 3600 s
    assert history.query("select pool, user_name, gpu_hours from gpu_hours order by user_name") == [
        ("pool", "ann", pytest.approx(0.5 + 0.25 + 1)),
        ("pool", "bob", pytest.approx(0.25 + 0.5 + 0.5)),
    ]


def test_fairness_is_the_mean_slowdown_of_a_users_jobs(history: History) -> None:
    for job_id, user, wait, run in (("a", "ann", 0, 10), ("b", "ann", 20, 10), ("c", "bob", 30, 10)):
        submit(history, job_id, 0, user=user)
        history.start(job_id, wait)
        history.stop(job_id, wait + run)
        history.end(job_id, wait + run)
    submit(history, "waits", 0, user="bob")
    assert history.query("select pool, user_name, jobs, mean_slowdown from fairness order by user_name") == [
        ("pool", "ann", 2, 2.0),
        ("pool", "bob", 1, 4.0),
    ]


# --- energy ---


def test_energy_of_jobs_and_of_idle_devices(history: History) -> None:
    history.device("g0")
    history.device("silent")
    submit(history, "a", 0, user="ann")
    submit(history, "b", 0, user="bob")
    history.start("a", 12, "g0", "silent")
    history.start("b", 21, "g0")
    history.stop("a", 33)
    history.stop("b", 36)
    power = {0: 100.0, 10: 200.0, 20: 400.0, 30: 50.0, 40: None, 50: 300.0, 90: 10.0, 91: 10.0}
    history.record(*(Sampled(T + at, "g0", None, None, watt, None) for at, watt in power.items()))
    history.record(*(Sampled(T + at, "silent", 50.0, None, None, None) for at in range(0, 40, 10)))
    # idle: 0-10 100 W, 10-12 200 W, 36-40 50 W, 50-60 300 W (a gap follows), 90-91 10 W
    # a alone: 12-20 200 W, 20-21 400 W; shared: 21-30 400 W, 30-33 50 W; b alone: 33-36 50 W
    assert history.query(
        "select pool, job_id, user_name, device_id, energy_wh * 3600 from energy order by job_id nulls last"
    ) == [
        ("pool", "a", "ann", "g0", pytest.approx(1600 + 400 + (3600 + 150) / 2)),
        ("pool", "b", "bob", "g0", pytest.approx((3600 + 150) / 2 + 150)),
        ("pool", None, None, "g0", pytest.approx(1000 + 400 + 200 + 3000 + 10)),
    ]
