"""A worker that lost its lease starts nothing, whatever it believes, and gives back what it has claimed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from fake_pool import FakePool, in_event_loop

from gpu_flows.runtimes.base import Attempt, Container, Found


@in_event_loop
async def test_no_plan_without_a_lease(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    pool.lease.valid = False
    pool.submit("a")
    await pool.settle()
    assert not pool.runtime.launched
    assert pool.gateway.states["a"] == "waiting"
    pool.lease.valid = True
    pool.dispatcher.wake()
    await pool.wait_for_running("a")


@in_event_loop
async def test_a_lease_lost_during_the_claim_prevents_the_launch(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    pool.gateway.claim_gate = asyncio.Event()
    pool.submit("a")
    await pool.settle()
    pool.lease.valid = False
    pool.gateway.claim_gate.set()
    await pool.wait_for(lambda: "a" in pool.waiting(), "the job waits again")
    assert not pool.runtime.launched
    assert pool.gateway.states["a"] == "waiting", "the claim was given back"
    pool.lease.valid = True
    pool.dispatcher.wake()
    await pool.wait_for_running("a")


@in_event_loop
async def test_a_lease_lost_during_the_launch_prevents_the_start(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    pool.runtime.launch_gate, pool.runtime.is_careful = asyncio.Event(), True
    pool.submit("a")
    await pool.wait_for(lambda: pool.gateway.states["a"] == "claimed", "the job is claimed")
    pool.lease.valid = False
    pool.runtime.launch_gate.set()
    await pool.wait_for(lambda: "a" in pool.waiting(), "the job waits again")
    assert not pool.runtime.launched
    assert pool.gateway.states["a"] == "waiting"
    assert not pool.job_ends()


@in_event_loop
async def test_a_launch_carries_the_end_of_the_lease(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    pool.lease.end = 1234.5
    pool.submit("a")
    await pool.wait_for_running("a")
    assert pool.runtime.start_before == [1234.5]


@in_event_loop
async def test_the_end_of_a_process_is_reported_without_a_lease(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    pool.submit("a")
    await pool.wait_for_running("a")
    assert pool.dispatcher.running_processes() == ["a"]
    pool.lease.valid = False
    pool.runtime.exit("a", 0)
    await pool.wait_for(lambda: pool.job_ends() == {"a": "completed"}, "its end is reported")


@in_event_loop
async def test_a_process_can_be_cancelled_without_a_lease(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    pool.submit("a")
    await pool.wait_for_running("a")
    pool.lease.valid = False
    pool.cancel("a")
    await pool.wait_for_stop_request("a")


@in_event_loop
async def test_an_old_attempt_of_a_container_is_not_reported_under_a_new_lease(tmp_path: Path) -> None:
    """Another worker has reported the end of attempt 1 and launched attempt 2 meanwhile."""
    pool = FakePool(tmp_path)
    pool.gateway.container = Container("image")
    pool.submit("a", 2)
    await pool.wait_for_running("a")
    first = pool.runtime.live["a"].launch
    pool.lease.valid = pool.dispatcher.active = False
    pool.runtime.exit("a", 143)
    await pool.settle()
    assert pool.dispatcher.is_executing("a")
    assert not pool.job_ends(), "it is left to the other worker"
    second = replace(first, attempt=2)
    attempt = await pool.runtime.launch(second, lambda: True)
    pool.lease.valid, pool.lease.token = True, "3"
    await pool.dispatcher.drop_containers()
    assert not pool.dispatcher.is_executing("a")
    assert not pool.engine.running
    old = Found(first, Attempt(first, "here:a.1", 1000.0), alive=False)
    pool.dispatcher.adopt_latest([old, Found(second, attempt, alive=True)])
    assert list(pool.runtime.known) == [second.id], "the old attempt is forgotten"
    pool.dispatcher.active = True
    await asyncio.sleep(1.1)  # an execution looks every second whether it may report
    assert not pool.job_ends()
    assert not pool.outcomes("a")
    assert [running.attempt for running in pool.engine.running.values()] == [2]
    pool.runtime.exit("a", 0)
    await pool.wait_for(lambda: pool.job_ends() == {"a": "completed"}, "the end of attempt 2 is reported")
    assert pool.outcomes("a") == ["completed"]
    assert not pool.engine.running


@in_event_loop
async def test_processes_are_followed_under_every_lease(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    pool.submit("a")
    await pool.wait_for_running("a")
    await pool.dispatcher.drop_containers()
    assert pool.dispatcher.is_executing("a")
    assert pool.engine.running
