"""Preemption while workers and servers fail, and with events in random order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from fake_pool import FakePool, happens, in_event_loop, preempt_two_jobs

from gpu_flows.checkpoints.contract import CHECKPOINTED
from gpu_flows.schedulers.policy import Policy, make_policy


@pytest.mark.parametrize("alive", [True, False])
@in_event_loop
async def test_the_next_worker_completes_a_preemption(tmp_path: Path, alive: bool) -> None:
    first = await preempt_two_jobs(tmp_path)
    await first.dispatcher.close()
    if not alive:
        first.save_and_stop("a", "b")
    pool = FakePool(tmp_path, runtime=first.runtime, gateway=first.gateway)
    for found in await pool.runtime.find():
        pool.dispatcher.adopt(found)
    pool.submit("urgent", 4, priority=1000)
    if alive:
        request = ("a.1", "reschedule")
        await pool.wait_for(lambda: pool.runtime.stop_requests.count(request) == 2, "the request is repeated")
        assert set(pool.runtime.live) == {"a", "b"}
        pool.save_and_stop("a", "b")
    await pool.wait_for_running("urgent")
    await pool.wait_for(lambda: pool.waiting() == {"a", "b"}, "both wait again")
    assert "Preempted for urgent" in pool.gateway.messages["a"], "the reason was stored"
    assert pool.outcomes("a") == ["preempted"]
    pool.runtime.exit("urgent", 0)
    await pool.wait_for_running("a", "b")
    assert pool.engine.running["a"].before.preemptions == 1


@in_event_loop
async def test_the_lease_is_lost_during_a_preemption(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.dispatcher.active = False
    pool.save_and_stop("a", "b")
    await pool.wait_for(lambda: not pool.dispatcher.executing(), "all executions have finished")
    assert pool.gateway.states == {"a": "waiting", "b": "waiting", "urgent": "waiting"}
    assert not pool.runtime.live, "nothing new is started"
    pool.dispatcher.active = True
    pool.dispatcher.wake()
    await pool.wait_for_running("urgent")


@in_event_loop
async def test_the_server_is_unreachable_when_devices_become_free(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    pool.gateway.reachable = False
    pool.save_and_stop("a", "b")
    await pool.settle()
    assert not pool.runtime.live
    pool.gateway.reachable = True
    await pool.wait_for_running("urgent")


@pytest.mark.parametrize("seed", range(20))
@in_event_loop
async def test_random_order_of_events(tmp_path: Path, seed: int) -> None:
    """Jobs are submitted, preempted, cancelled, finish and crash, workers restart and the server becomes
    unreachable, all at random. The fake runtime fails if a device is used twice or a job has two live
    attempts. In the end, every job has ended."""
    rng = random.Random(seed)
    pool = FakePool(tmp_path, "2x2", random_policy(rng))
    jobs: list[tuple[str, dict[str, Any]]] = []
    for step in range(60):
        pool.runtime.now += rng.choice([0, 0.5, 7])
        match rng.choice(["submit", "submit", "exit", "exit", "exit", "cancel", "server", "worker"]):
            case "submit" if len(jobs) < 25:
                ask = {
                    "gpus": rng.choice([1, 1, 2]),
                    "priority": rng.choice([0, 10, 1000]),
                    "expected_s": rng.choice([5.0, 50.0]),
                }
                jobs.append((f"job-{step}", ask))
                pool.submit(f"job-{step}", **ask)
            case "exit" if pool.runtime.live:
                pool.runtime.exit(rng.choice(sorted(pool.runtime.live)), random_exit_code(rng))
            case "cancel" if jobs and rng.random() < 0.3:
                job_id = rng.choice(jobs)[0]
                if pool.gateway.states[job_id] in ("waiting", "claimed"):
                    pool.cancel(job_id)
            case "server":
                pool.gateway.reachable = not pool.gateway.reachable
            case "worker" if rng.random() < 0.2:
                await pool.dispatcher.close()
                pool = await restart_worker(tmp_path, pool, jobs, random_policy(rng))
        for _ in range(rng.choice([0, 1, 3, 10])):
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            await pool.settle()
    pool.gateway.reachable = True
    ended = {"completed", "failed", "cancelled"}

    def let_end() -> bool:
        for job_id in sorted(pool.runtime.live):
            pool.runtime.exit(job_id, 0)
        pool.dispatcher.wake()
        return all(pool.gateway.states[job_id] in ended for job_id, _ in jobs)

    assert await happens(let_end), pool.gateway.states
    await pool.wait_for(lambda: not pool.dispatcher.executing(), "all executions have finished")
    assert pool.engine.cluster.idle == 4
    assert not pool.engine.policy_error


def random_policy(rng: random.Random) -> Policy:
    return make_policy(rng.choice(["priority", "srtf"]))


def random_exit_code(rng: random.Random) -> int:
    return rng.choice([0, 0, CHECKPOINTED, CHECKPOINTED, 1, -9])


async def restart_worker(
    tmp_path: Path, before: FakePool, jobs: list[tuple[str, dict[str, Any]]], policy: Policy
) -> FakePool:
    """Return the next worker's pool. It adopts the live attempts, and reads the waiting jobs from the
    server."""
    pool = FakePool(tmp_path, "2x2", policy, runtime=before.runtime, gateway=before.gateway)
    for found in await pool.runtime.find():
        pool.dispatcher.adopt(found)
    for job_id, ask in jobs:
        if pool.gateway.states[job_id] == "claimed" and not pool.dispatcher.is_executing(job_id):
            pool.gateway.states[job_id] = "waiting"
        if pool.gateway.states[job_id] == "waiting":
            pool.submit(job_id, **ask)
    return pool
