"""The forecasting child, as a real process beside a dispatcher: what it forecasts, and what happens to the
pool if it dies or hangs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from unittest import mock

import psutil
import pytest
from fake_pool import FakePool, happens, in_event_loop

from gpu_flows.analytics.facts import Forecast
from gpu_flows.common.retry import Backoff
from gpu_flows.forecasting import forecaster as module
from gpu_flows.forecasting.forecaster import Forecaster
from gpu_flows.forecasting.messages import Settings
from gpu_flows.forecasting.record import Thinning
from gpu_flows.forecasting.state_file import read_state
from gpu_flows.schedulers.forecast.eta import Eta
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.estimate import Estimate

QUICK = Backoff(first_s=0.05)


def stated(job: Job) -> Estimate | None:
    return Estimate(job.expected_s, job.expected_s, "stated") if job.expected_s else None


@asynccontextmanager
async def forecast_pool(
    folder: Path, hangs_after_s: float = 30.0
) -> AsyncIterator[tuple[FakePool, Forecaster]]:
    """A pool and its forecaster, whose child has started."""
    pool = FakePool(folder, "1x2")
    forecaster = Forecaster(
        "pool",
        folder,
        pool.engine,
        stated,
        lambda: Settings(pool.engine.active_policy.name),
        lambda *facts: pool.facts.extend(facts),
        logging.getLogger("forecasts"),
        clock=lambda: pool.runtime.now,
        is_leading=lambda: pool.dispatcher.active,
    )
    pool.dispatcher.spectator = forecaster
    with mock.patch.multiple(module, RESTART=QUICK, HANGS_AFTER_S=hangs_after_s):
        task = asyncio.ensure_future(forecaster.keep_forecasting())
        try:
            yield pool, forecaster
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await pool.dispatcher.close()


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "gpu_flows.forecasting.child" in child.cmdline():
                found.append(child)
    return found


@in_event_loop
async def test_jobs_get_forecasts_and_the_state_is_written_for_others(tmp_path: Path) -> None:
    async with forecast_pool(tmp_path) as (pool, forecaster):
        pool.submit("a", 2, expected_s=100.0)
        pool.submit("b", 1, expected_s=50.0)
        await pool.wait_for_running("a")
        assert await happens(lambda: forecaster.eta("b") and forecaster.eta("a"))
        eta = forecaster.eta("b")
        assert eta
        assert eta.start_p50 == pytest.approx(1100, abs=10)
        assert eta.end_p90 == pytest.approx(1150, abs=15)
        state = read_state(tmp_path)
        assert state
        assert [job.id for job, _ in state.waiting] == ["b"]
        assert [held.job.id for held in state.running] == ["a"]
        assert {job.id for job, _ in state.recent} == {"a", "b"}, "such jobs may come again"
        recorded = {fact.job_id: fact for fact in pool.facts if isinstance(fact, Forecast)}
        assert recorded["b"].start_p50 == pytest.approx(eta.start_p50, abs=10)
        assert (recorded["b"].pool, recorded["b"].policy) == ("pool", "priority")
        pool.runtime.exit("a", 0)
        assert await happens(lambda: (now := forecaster.eta("b")) and now.start_p90 < 1020)
        assert await happens(lambda: forecaster.eta("a") is None)


@in_event_loop
async def test_the_alternatives_of_the_head_of_the_queue_are_tried(tmp_path: Path) -> None:
    async with forecast_pool(tmp_path) as (pool, forecaster):
        pool.submit("a", 1, expected_s=100.0)
        await pool.wait_for_running("a")
        pool.submit("wide", 2, expected_s=50.0)
        assert await happens(lambda: forecaster.describe("wide")["alternatives"])
        labels = [each["label"] for each in forecaster.describe("wide")["alternatives"]]
        assert labels[0] == "on 1 GPU instead of 2"
        assert "with priority + 1" in labels
        (holder,) = forecaster.describe("wide")["waits_for"]
        assert (holder["name"], holder["until"]) == ("a", pytest.approx(1100, abs=10))


@in_event_loop
async def test_a_child_that_is_killed_is_replaced_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with forecast_pool(tmp_path) as (pool, forecaster):
        pool.submit("a", 2, expected_s=100.0)
        for _ in range(2):
            assert await happens(lambda: forecaster.eta("a"))
            (child,) = children()
            os.kill(child.pid, signal.SIGKILL)
            assert await happens(lambda: forecaster.eta("a") is None)
            pool.submit("b", 1, expected_s=20.0)
        await pool.wait_for_running("a")
        assert await happens(lambda: forecaster.eta("b"))
    assert caplog.text.count("There are no forecasts until their process works again") == 1
    assert "killed by SIGKILL" in caplog.text


@in_event_loop
async def test_a_child_that_hangs_is_replaced_and_the_pool_goes_on(tmp_path: Path) -> None:
    async with forecast_pool(tmp_path, hangs_after_s=4.0) as (pool, forecaster):
        pool.submit("a", 1, expected_s=100.0)
        assert await happens(lambda: forecaster.eta("a"))
        (child,) = children()
        child.suspend()
        for name in "bcd":  # the first of them is sent, and waits for an answer
            pool.submit(name, 1, expected_s=10.0)
            await asyncio.sleep(0.01)
        await pool.wait_for_running("a", "b")
        assert await happens(lambda: not psutil.pid_exists(child.pid))
        assert await happens(lambda: forecaster.eta("d"))


@in_event_loop
async def test_a_child_that_hangs_with_much_to_read_leaves_nothing_in_the_event_loop(tmp_path: Path) -> None:
    """What is left there of a closed connection disturbs the next one that gets its number."""
    async with forecast_pool(tmp_path, hangs_after_s=6.0) as (pool, forecaster):
        pool.submit("a", 1, expected_s=100.0)
        assert await happens(lambda: forecaster.eta("a"))
        (child,) = children()
        child.suspend()
        pool.submit("b", 1, expected_s=10.0, user="x" * 2_000_000)  # more than a socket takes
        assert await happens(lambda: not psutil.pid_exists(child.pid))
        first, second = socket.socketpair()
        with first, second:
            reader, writer = await asyncio.open_connection(sock=first)
            second.sendall(b"hello\n")
            assert await asyncio.wait_for(reader.readline(), 10) == b"hello\n"
            writer.close()


@in_event_loop
async def test_a_worker_that_has_lost_its_lease_forecasts_no_more(tmp_path: Path) -> None:
    async with forecast_pool(tmp_path) as (pool, forecaster):
        pool.submit("a", 1, expected_s=100.0)
        assert await happens(lambda: forecaster.eta("a"))
        pool.dispatcher.active = False
        assert await happens(lambda: not children())
        assert forecaster.eta("a") is None
        pool.dispatcher.active = True
        assert await happens(lambda: forecaster.eta("a"))


@in_event_loop
async def test_a_plan_is_carried_out_although_the_forecaster_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with forecast_pool(tmp_path) as (pool, forecaster):
        pool.submit("a", 1, expected_s=100.0)
        assert await happens(lambda: forecaster.eta("a"))
        (child,) = children()
        for name in ("before_plan", "after_plan"):
            with mock.patch.object(forecaster, name, side_effect=ZeroDivisionError):
                pool.submit(name, 1, expected_s=10.0)
                await pool.wait_for(lambda name=name: name in pool.runtime.live or pool.waiting(), "a plan")  # type: ignore[misc]
                await pool.settle()
        assert set(pool.runtime.live) >= {"a", "before_plan"}
        assert "What looks at the plans of pool 'pool' failed" in caplog.text
        assert await happens(lambda: forecaster.eta("after_plan")), "with a new child"
        assert child not in children()


@in_event_loop
async def test_nothing_is_forecast_of_jobs_of_which_nothing_is_known(tmp_path: Path) -> None:
    async with forecast_pool(tmp_path) as (pool, forecaster):
        pool.submit("a", 1)
        assert await happens(lambda: forecaster.outcome.why)
        assert "Nothing is known about how long a takes" in forecaster.outcome.why
        assert forecaster.describe("a") == {"eta": None, "waits_for": [], "alternatives": []}


def eta_at(start: float) -> Eta:
    return Eta(start, start + 10, start + 100, start + 150)


def test_a_forecast_is_recorded_when_it_is_new_or_has_moved_noticeably() -> None:
    thinning = Thinning()
    assert thinning.choose({"a": eta_at(1000)}, (), 0.0) == [("a", 0.0, 1000, 1010, 1100, 1150)]
    assert not thinning.choose({"a": eta_at(1010)}, (), 200.0), "it moved by less than 5% of what remains"
    assert not thinning.choose({"a": eta_at(1500)}, (), 10.0), "the last row is recent for such a horizon"
    assert thinning.choose({"a": eta_at(1500)}, (), 200.0)
    assert thinning.choose({"a": eta_at(1500)}, ("a",), 201.0), "it runs now"
    assert thinning.choose({"a": eta_at(1500)}, (), 202.0), "and it waits again"


def test_the_rows_of_a_job_grow_with_the_logarithm_of_its_time() -> None:
    thinning, rows, now = Thinning(), 0, 0.0
    while now < 10_000:
        start = 10_000.0 + 0.3 * (now % 7) * (10_000 - now)  # it jumps about all the time
        rows += len(thinning.choose({"a": Eta(start, start, start, start)}, (), now))
        now += 1.0
    assert 20 < rows < 120


def test_a_forecast_of_very_many_jobs_is_recorded_in_parts() -> None:
    thinning = Thinning()
    etas = {f"j{number}": eta_at(1000) for number in range(800)}
    assert [len(thinning.choose(etas, (), 0.0)) for _ in range(3)] == [500, 300, 0]
