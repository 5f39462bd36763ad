"""Jobs that a plan moves to other devices or resizes: they stop, and continue as their next attempt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_pool import FakePool, ScriptedPolicy, in_event_loop

from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.policy import State


def move_to(job_id: str, choose: Callable[[list[Device]], list[Device]]) -> Callable[[State], None]:
    """Return a script that stops the job and starts it on other devices."""

    def script(state: State) -> None:
        job = state.running[job_id].job
        state.draft.preempt(job_id)
        devices = [device.device for node in state.cluster for device in node.devices]
        state.draft.start(job, tuple(choose(devices)))

    return script


async def start_and_replan(
    pool: FakePool, policy: ScriptedPolicy, script: Callable[[State], None], **job: Any
) -> None:
    """Start job a, then let the script make the next plan, and wait until a is asked to stop."""
    pool.submit("a", **job)
    await pool.wait_for_running("a")
    pool.runtime.now += 10
    policy.script = script
    pool.engine.swap(policy)
    pool.dispatcher.wake()
    await pool.wait_for_stop_request("a")


@in_event_loop
async def test_a_job_moves_to_another_node(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    pool = FakePool(tmp_path, "2x2", policy)
    await start_and_replan(pool, policy, move_to("a", lambda devices: devices[2:4]), gpus=2)
    await pool.settle()
    assert pool.runtime.launched == ["a.1"], "the second attempt waits for the first"
    pool.runtime.now += 5
    pool.save_and_stop("a")
    await pool.wait_for(lambda: pool.runtime.launched == ["a.1", "a.2"], "the second attempt runs")
    assert {device.node for device in pool.runtime.live["a"].launch.devices} == {"node-2"}
    before = pool.engine.running["a"].before
    assert (before.ran_s, before.work_s, before.preemptions) == (15, 15, 0)
    pool.runtime.now += 20
    pool.cancel("a")
    pool.save_and_stop("a")
    await pool.wait_for(lambda: pool.job_ends(), "a ends")
    assert pool.outcomes("a") == ["moved", "cancelled"]
    assert pool.engine.cluster.idle == 4


@in_event_loop
async def test_progress_adds_up_over_a_move_and_a_preemption(tmp_path: Path) -> None:
    def fill(state: State) -> None:
        state.draft.preempt("a")
        newcomers = [job for job in state.waiting if job.id != "a"]
        for job, node in zip(newcomers, list(state.cluster), strict=True):
            state.draft.start(job, tuple(device.device for device in node.devices))

    policy = ScriptedPolicy()
    pool = FakePool(tmp_path, "2x2", policy)
    await start_and_replan(pool, policy, move_to("a", lambda devices: devices[2:4]), gpus=2)
    pool.runtime.now += 5
    pool.save_and_stop("a")
    await pool.wait_for(lambda: pool.runtime.launched == ["a.1", "a.2"], "the second attempt runs")
    pool.runtime.now += 20
    policy.script = fill
    for job_id in ("b", "c"):
        pool.engine.submit(Job(job_id, pool.runtime.now, 2))
    pool.dispatcher.wake()
    await pool.wait_for(lambda: ("a.2", "reschedule") in pool.runtime.stop_requests, "a is asked to stop")
    pool.save_and_stop("a")
    await pool.wait_for(lambda: pool.outcomes("a") == ["moved", "preempted"], "a was preempted")
    await pool.wait_for(lambda: pool.dispatcher.waits("a"), "a waits again")
    progress = pool.job_store.load_progress("a")
    assert (progress.attempts, progress.ran_s, progress.work_s, progress.preemptions) == (2, 35, 35, 1)


@in_event_loop
async def test_a_job_is_resized(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    pool = FakePool(tmp_path, "1x4", policy)
    size = {"gpus": 2, "min_gpus": 1, "max_gpus": 4}
    await start_and_replan(pool, policy, move_to("a", lambda devices: devices), **size)
    pool.save_and_stop("a")
    await pool.wait_for(lambda: pool.runtime.launched == ["a.1", "a.2"], "the second attempt runs")
    assert len(pool.runtime.live["a"].launch.devices) == 4
    assert pool.outcomes("a") == ["resized"]
    assert "from 2 to 4 GPUs" in pool.gateway.messages["a"]


@pytest.mark.parametrize("end", ["finishes", "is cancelled"])
@in_event_loop
async def test_a_job_ends_instead_of_moving(tmp_path: Path, end: str) -> None:
    policy = ScriptedPolicy()
    pool = FakePool(tmp_path, "2x2", policy)
    await start_and_replan(pool, policy, move_to("a", lambda devices: devices[2:4]), gpus=2)
    if end == "is cancelled":
        pool.cancel("a")
        pool.save_and_stop("a")
    else:
        pool.runtime.exit("a", 0)
    await pool.wait_for(lambda: pool.job_ends(), "a ends")
    await pool.wait_for(lambda: not pool.dispatcher.executing(), "the second execution has finished")
    assert pool.job_ends() == {"a": "completed" if end == "finishes" else "cancelled"}
    assert pool.engine.cluster.idle == 4
    assert pool.runtime.launched == ["a.1"]


@in_event_loop
async def test_two_jobs_swap_nodes(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    pool = FakePool(tmp_path, "2x2", policy)
    pool.submit("a", 2)
    pool.submit("b", 2)
    await pool.wait_for_running("a", "b")

    def swap(state: State) -> None:
        a, b = state.running["a"], state.running["b"]
        state.draft.preempt("a")
        state.draft.preempt("b")
        state.draft.start(a.job, b.devices)
        state.draft.start(b.job, a.devices)

    policy.script = swap
    pool.engine.swap(policy)
    pool.dispatcher.wake()
    await pool.wait_for_stop_request("a", "b")
    pool.save_and_stop("a")
    await pool.settle()
    assert set(pool.runtime.live) == {"b"}
    pool.save_and_stop("b")
    await pool.wait_for_running("a", "b")
    assert pool.runtime.live["a"].launch.devices[0].node == "node-2"


@in_event_loop
async def test_preempted_in_the_middle_of_a_move(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    pool = FakePool(tmp_path, "2x2", policy)
    await start_and_replan(pool, policy, move_to("a", lambda devices: devices[2:4]), gpus=2)

    def stop(state: State) -> None:
        state.draft.preempt("a")
        job = next(job for job in state.waiting if job.id == "b")
        state.draft.start(job, tuple(device.device for device in [*state.cluster][1].devices))

    policy.script = stop
    pool.submit("b", 2)
    await pool.wait_for_running("a", "b")
    assert not pool.waiting(), "a has not stopped yet"
    pool.save_and_stop("a")
    await pool.wait_for(lambda: "a.2" in pool.runtime.launched, "a continues on its old node")
    assert pool.runtime.live["a"].launch.devices[0].node == "node-1"
