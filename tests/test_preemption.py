"""Preemption: no device is allocated twice, no job is lost, and no preempted job is shown as failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fake_pool import FakePool, in_event_loop, preempt_two_jobs

from gpu_flows.checkpoints.contract import Entry, write_entry
from gpu_flows.schedulers.protection import Protection


@in_event_loop
async def test_two_jobs_are_preempted_for_one_and_continue_later(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    assert sorted(pool.runtime.stop_requests) == [("a.1", "reschedule"), ("b.1", "reschedule")]
    pool.runtime.now += 5
    pool.save_and_stop("a")
    await pool.settle()
    assert set(pool.runtime.live) == {"b"}, "the urgent job waits until both have released their devices"
    pool.save_and_stop("b")
    await pool.wait_for_running("urgent")
    await pool.wait_for(lambda: pool.waiting() == {"a", "b"}, "both wait again")
    assert "Preempted for urgent by policy 'priority'" in pool.gateway.messages["a"]
    pool.runtime.exit("urgent", 0)
    await pool.wait_for_running("a", "b")
    assert pool.runtime.launched == ["a.1", "b.1", "urgent.1", "a.2", "b.2"]
    pool.runtime.exit("a", 0)
    pool.runtime.exit("b", 0)
    await pool.wait_for(lambda: len(pool.job_ends()) == 3, "all jobs have ended")
    assert set(pool.job_ends().values()) == {"completed"}
    assert pool.outcomes("a") == pool.outcomes("b") == ["preempted", "completed"]
    interruptions = [fact for fact in pool.facts if fact.table == "interruptions"]
    assert {
        (fact.job_id, fact.kind, fact.freed_for, fact.requested, fact.released) for fact in interruptions
    } == {(job_id, "preempted", '["urgent"]', 1010.0, 1015.0) for job_id in ("a", "b")}
    assert {fact.requeued for fact in interruptions} == {1015.0}
    released = [fact.released for fact in pool.facts if fact.table == "attempt_ends"]
    assert released == [1015.0] * 5, "of the preempted ones, and of all that completed"


@in_event_loop
async def test_progress_counts_only_saved_work(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.runtime.now += 5  # the plan counted 10 s, but the jobs ran for 15 s
    pool.save_and_stop("a")
    pool.runtime.exit("b", 1)  # crashed while saving; its last checkpoint is 6 s old
    write_entry(tmp_path / "checkpoints" / "b", Entry("saved", 1, pool.runtime.now - 6, step=9))
    await pool.wait_for(lambda: pool.waiting() == {"a", "b"}, "both wait again")
    a, b = pool.engine.progress("a"), pool.engine.progress("b")
    assert (a.attempts, a.ran_s, a.gpu_s, a.work_s, a.preemptions) == (1, 15, 30, 15, 1)
    assert (b.attempts, b.ran_s, b.work_s) == (1, 15, 9), "unsaved work does not count"
    lost = {fact.job_id: fact.lost_s for fact in pool.facts if fact.table == "saved_work"}
    assert lost == {"a": 0, "b": 6}


@in_event_loop
async def test_released_devices_stay_reserved_for_the_planned_job(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.submit("small", 1, priority=500)
    pool.save_and_stop("a")
    await pool.settle()
    assert set(pool.runtime.live) == {"b"}
    reasons = {job.id: reason for job, reason in pool.dispatcher.reasons()}
    assert reasons["urgent"].code == "making_room"
    assert "waits for b to save and stop" in reasons["urgent"].summary
    pool.save_and_stop("b")
    await pool.wait_for_running("urgent")


@in_event_loop
async def test_a_killed_job_loses_unsaved_work_and_waits_again(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    for job_id in ("a", "b"):  # killed by the runtime after the grace period
        pool.runtime.exit(job_id, -9)
    await pool.wait_for_running("urgent")
    await pool.wait_for(lambda: pool.waiting() == {"a", "b"}, "both wait again")
    assert pool.outcomes("a") == ["preempted"]
    assert pool.engine.progress("a").work_s == 0
    assert not pool.job_ends()


@in_event_loop
async def test_a_job_that_finishes_while_being_preempted_is_completed(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.runtime.exit("a", 0)
    pool.save_and_stop("b")
    await pool.wait_for_running("urgent")
    await pool.wait_for(lambda: pool.job_ends() == {"a": "completed"}, "a is completed")
    await pool.wait_for(lambda: pool.waiting() == {"b"}, "b waits again")
    assert pool.outcomes("a") == ["completed"]


@in_event_loop
async def test_a_job_is_protected_for_its_least_run_time(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, protection=Protection(min_run_seconds=60))
    pool.submit("a", 4)
    await pool.wait_for_running("a")
    pool.runtime.now += 10
    pool.submit("urgent", 4, priority=1000)
    await pool.settle()
    assert not pool.runtime.stop_requests
    assert pool.engine.wake_at == 1060, "the engine plans again when the protection ends"
    pool.runtime.now += 51
    pool.dispatcher.wake()
    await pool.wait_for_stop_request("a")


# -- cancelled at any moment ---------------------------------------------------------------------


@in_event_loop
async def test_cancelled_while_being_preempted(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.cancel("a")
    await pool.settle()
    assert ("a.1", "cancel") not in pool.runtime.stop_requests, "a second signal may interrupt its saving"
    pool.save_and_stop("a", "b")
    await pool.wait_for_running("urgent")
    await pool.wait_for(lambda: pool.job_ends() == {"a": "cancelled"}, "a is cancelled")
    await pool.wait_for(lambda: pool.waiting() == {"b"}, "b waits again")


@in_event_loop
async def test_cancelled_while_it_waits_again(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.save_and_stop("a", "b")
    await pool.wait_for(lambda: pool.waiting() == {"a", "b"}, "both wait again")
    assert pool.dispatcher.cancel("a")
    assert pool.waiting() == {"b"}
    pool.runtime.exit("urgent", 0)
    await pool.wait_for_running("b")


@in_event_loop
async def test_the_preempting_job_is_cancelled(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.cancel("urgent")
    await pool.wait_for(lambda: pool.job_ends() == {"urgent": "cancelled"}, "urgent is cancelled")
    pool.submit("other", 4, priority=1)
    await pool.settle()
    assert set(pool.runtime.live) == {"a", "b"}, "other waits for devices that are not free yet"
    pool.save_and_stop("a", "b")
    await pool.wait_for_running("other")
    pool.runtime.exit("other", 0)
    await pool.wait_for_running("a", "b")
    assert "urgent.1" not in pool.runtime.launched


# -- preempted before it runs --------------------------------------------------------------------


@in_event_loop
async def test_preempted_while_its_devices_are_being_released(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.submit("critical", 4, priority=9999)
    await pool.wait_for(lambda: pool.waiting() == {"urgent"}, "urgent is back in the queue")
    pool.save_and_stop("a", "b")
    await pool.wait_for_running("critical")
    pool.runtime.exit("critical", 0)
    await pool.wait_for_running("urgent")
    assert "urgent.1" in pool.runtime.launched
    assert pool.engine.running["urgent"].before.preemptions == 0, "an attempt that never ran is not preempted"


@in_event_loop
async def test_preempted_while_being_claimed(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    pool.gateway.claim_gate = asyncio.Event()
    pool.submit("a", 4)
    await pool.settle()
    pool.submit("urgent", 4, priority=1000)
    await pool.settle()
    pool.gateway.claim_gate.set()
    await pool.wait_for_running("urgent")
    await pool.wait_for(lambda: pool.waiting() == {"a"}, "a waits again")
    assert pool.runtime.launched == ["urgent.1"]
    assert pool.outcomes("a") == []
    pool.runtime.exit("urgent", 0)
    await pool.wait_for_running("a")
    assert pool.runtime.launched[-1] == "a.1", "the attempt that was never launched does not count"


@in_event_loop
async def test_preempted_while_being_launched(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    gate = pool.runtime.launch_gate = asyncio.Event()
    pool.submit("a", 4)
    await pool.settle()
    pool.submit("urgent", 4, priority=1000)
    await pool.settle()
    pool.runtime.launch_gate = None
    gate.set()
    await pool.wait_for_stop_request("a")
    assert set(pool.runtime.live) == {"a"}
    pool.runtime.exit("a", -10)
    await pool.wait_for_running("urgent")
    await pool.wait_for(lambda: pool.waiting() == {"a"}, "a waits again")
    assert pool.outcomes("a") == ["preempted"]
