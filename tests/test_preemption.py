"""Preemption in every order of events: whatever happens while a job leaves, no device is promised twice,
no job is lost, and none is shown as failed for having been asked to leave."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from fake_pool import Scripted, Stage

from gpu_flows.checkpoints.contract import CHECKPOINTED, Entry, write_entry
from gpu_flows.dispatch import dispatcher
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.protection import Protection

LEFT = CHECKPOINTED


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "CLAIMS_FIRST_S", 0.0)
    monkeypatch.setattr(dispatcher, "PAUSE_WHEN_UNREACHABLE_S", 0.0)


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


async def full(stage: Stage) -> None:
    """Two jobs fill the only node; an urgent one wants all of it."""
    stage.submit("a", 2)
    stage.submit("b", 2)
    await stage.running("a", "b")
    stage.runtime.now += 10
    stage.submit("urgent", 4, priority=1000)
    await stage.asked("a", "b")


# -- the way it should be ------------------------------------------------------------------------


def test_two_make_room_for_one_and_come_back(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        assert sorted(stage.runtime.asked) == [("a.1", "reschedule"), ("b.1", "reschedule")]
        stage.runtime.now += 5
        stage.runtime.exit("a", LEFT)
        await stage.settle()
        assert set(stage.runtime.live) == {"b"}, "it waits until both are gone"
        stage.runtime.exit("b", LEFT)
        await stage.running("urgent")
        await stage.until(lambda: stage.waiting() == {"a", "b"}, "both wait again")
        assert "Made room for urgent, by policy 'priority'" in stage.gateway.notes["a"]
        stage.runtime.exit("urgent", 0)
        await stage.running("a", "b")
        assert stage.runtime.launched == ["a.1", "b.1", "urgent.1", "a.2", "b.2"]
        stage.runtime.exit("a", 0)
        stage.runtime.exit("b", 0)
        await stage.until(lambda: len(stage.ends()) == 3, "all have ended")
        assert set(stage.ends().values()) == {"completed"}
        assert stage.outcomes("a") == stage.outcomes("b") == ["preempted", "completed"]
        left = [fact for fact in stage.facts if fact.table == "departures"]
        assert {(it.job_id, it.kind, it.room_for, it.asked, it.gone) for it in left} == {
            (job, "preempted", '["urgent"]', 1010.0, 1015.0) for job in ("a", "b")
        }

    play(scene)


def test_what_it_has_behind_it_is_what_really_happened(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.runtime.now += 5  # the plan thought of 10 s, but it ran for 15
        stage.runtime.exit("a", LEFT)
        stage.runtime.exit("b", 1)  # it crashed while saving, and its last checkpoint is 6 s old
        write_entry(tmp_path / "checkpoints" / "b", Entry("saved", 1, stage.runtime.now - 6, step=9))
        await stage.until(lambda: stage.waiting() == {"a", "b"}, "both wait again")
        a, b = stage.engine.progress("a"), stage.engine.progress("b")
        assert (a.attempts, a.ran_s, a.gpu_s, a.work_s, a.preemptions) == (1, 15, 30, 15, 1)
        assert (b.attempts, b.ran_s, b.work_s) == (1, 15, 9), "what was not saved is not done"
        lost = {fact.job_id: fact.lost_s for fact in stage.facts if fact.table == "saved_work"}
        assert lost == {"a": 0, "b": 6}

    play(scene)


def test_who_is_not_asked_does_not_get_what_is_freed(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.submit("small", 1, priority=500)
        stage.runtime.exit("a", LEFT)
        await stage.settle()
        assert set(stage.runtime.live) == {"b"}
        why = {job.id: reason for job, reason in stage.dispatcher.reasons()}
        assert why["urgent"].code == "making_room"
        assert "it waits for b to save and leave" in why["urgent"].summary
        stage.runtime.exit("b", LEFT)
        await stage.running("urgent")

    play(scene)


def test_one_that_is_deaf_is_killed_and_loses_what_it_did(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        for job_id in ("a", "b"):  # the runtime kills it when its grace is over
            stage.runtime.exit(job_id, -9)
        await stage.running("urgent")
        await stage.until(lambda: stage.waiting() == {"a", "b"}, "both wait again")
        assert stage.outcomes("a") == ["preempted"]
        assert stage.engine.progress("a").work_s == 0
        assert not stage.ends()

    play(scene)


def test_one_that_finishes_instead_of_leaving_has_finished(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.runtime.exit("a", 0)
        stage.runtime.exit("b", LEFT)
        await stage.running("urgent")
        await stage.until(lambda: stage.ends() == {"a": "completed"}, "it completed")
        await stage.until(lambda: stage.waiting() == {"b"}, "the other waits again")
        assert stage.outcomes("a") == ["completed"]

    play(scene)


# -- cancelled at any moment ---------------------------------------------------------------------


def test_cancelled_while_it_leaves(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.cancel("a")
        await stage.settle()
        assert stage.runtime.asked.count(("a.1", "cancel")) == 0, "a second signal may cut its saving short"
        stage.runtime.exit("a", LEFT)
        stage.runtime.exit("b", LEFT)
        await stage.running("urgent")
        await stage.until(lambda: stage.ends() == {"a": "cancelled"}, "it is cancelled")
        await stage.until(lambda: stage.waiting() == {"b"}, "the other waits again")

    play(scene)


def test_cancelled_while_it_waits_again(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.runtime.exit("a", LEFT)
        stage.runtime.exit("b", LEFT)
        await stage.until(lambda: stage.waiting() == {"a", "b"}, "both wait again")
        assert stage.dispatcher.cancel("a")
        assert stage.waiting() == {"b"}
        stage.runtime.exit("urgent", 0)
        await stage.running("b")

    play(scene)


def test_the_one_for_whom_room_is_made_is_cancelled(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.cancel("urgent")
        await stage.until(lambda: stage.ends() == {"urgent": "cancelled"}, "it is cancelled")
        stage.submit("other", 4, priority=1)
        await stage.settle()
        assert set(stage.runtime.live) == {"a", "b"}, "nobody gets devices that are not free yet"
        stage.runtime.exit("a", LEFT)
        stage.runtime.exit("b", LEFT)
        await stage.running("other")
        stage.runtime.exit("other", 0)
        await stage.running("a", "b")
        assert "urgent.1" not in stage.runtime.launched

    play(scene)


# -- preempted before it runs --------------------------------------------------------------------


def test_preempted_while_room_is_made_for_it(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.submit("fire", 4, priority=9999)
        await stage.until(lambda: stage.waiting() == {"urgent"}, "the urgent one is back in line")
        stage.runtime.exit("a", LEFT)
        stage.runtime.exit("b", LEFT)
        await stage.running("fire")
        stage.runtime.exit("fire", 0)
        await stage.running("urgent")
        assert "urgent.1" in stage.runtime.launched
        assert stage.engine.running["urgent"].before.preemptions == 0, "it had not begun"

    play(scene)


def test_preempted_while_it_is_claimed(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        stage.gateway.window = asyncio.Event()
        stage.submit("a", 4)
        await stage.settle()
        stage.submit("urgent", 4, priority=1000)
        await stage.settle()
        stage.gateway.window.set()
        await stage.running("urgent")
        await stage.until(lambda: stage.waiting() == {"a"}, "it waits again")
        assert stage.runtime.launched == ["urgent.1"]
        assert stage.outcomes("a") == []
        stage.runtime.exit("urgent", 0)
        await stage.running("a")
        assert stage.runtime.launched[-1] == "a.1", "it has had no attempt before"

    play(scene)


def test_preempted_while_it_is_launched(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        curtain = stage.runtime.curtain = asyncio.Event()
        stage.submit("a", 4)
        await stage.settle()
        stage.submit("urgent", 4, priority=1000)
        await stage.settle()
        stage.runtime.curtain = None
        curtain.set()
        await stage.asked("a")
        assert set(stage.runtime.live) == {"a"}
        stage.runtime.exit("a", -10)
        await stage.running("urgent")
        await stage.until(lambda: stage.waiting() == {"a"}, "it waits again")
        assert stage.outcomes("a") == ["preempted"]

    play(scene)


# -- moved and resized ---------------------------------------------------------------------------


def to(job_id: str, devices: Callable[[list[Device]], list[Device]]) -> Callable[[State], None]:
    """A plan that stops the job and starts it on other devices."""

    def script(state: State) -> None:
        job = state.running[job_id].job
        state.draft.preempt(job_id)
        every = [each.device for node in state.cluster for each in node.devices]
        state.draft.start(job, tuple(devices(every)))

    return script


async def one_running(stage: Stage, policy: Scripted, script: Callable[[State], None], **ask: Any) -> None:
    stage.submit("a", **ask)
    await stage.running("a")
    stage.runtime.now += 10
    policy.script = script
    stage.engine.swap(policy)
    stage.dispatcher.wake()
    await stage.asked("a")


def test_a_job_moves_to_another_node(tmp_path: Path) -> None:
    async def scene() -> None:
        policy = Scripted()
        stage = Stage(tmp_path, "2x2", policy)
        await one_running(stage, policy, to("a", lambda every: every[2:4]), gpus=2)
        await stage.settle()
        assert stage.runtime.launched == ["a.1"], "it has to leave before it can go on"
        stage.runtime.now += 5
        stage.runtime.exit("a", LEFT)
        await stage.until(lambda: stage.runtime.launched == ["a.1", "a.2"], "it goes on")
        assert {device.node for device in stage.runtime.live["a"].launch.devices} == {"node-2"}
        before = stage.engine.running["a"].before
        assert (before.ran_s, before.work_s, before.preemptions) == (15, 15, 0)
        stage.runtime.now += 20
        stage.cancel("a")
        stage.runtime.exit("a", LEFT)
        await stage.until(lambda: stage.ends(), "it ends")
        assert stage.outcomes("a") == ["moved", "cancelled"]
        assert stage.engine.cluster.idle == 4

    play(scene)


def test_what_a_moved_job_has_behind_it_adds_up(tmp_path: Path) -> None:
    def fill(state: State) -> None:
        state.draft.preempt("a")
        newcomers = [job for job in state.waiting if job.id != "a"]
        for job, node in zip(newcomers, list(state.cluster), strict=True):
            state.draft.start(job, tuple(each.device for each in node.devices))

    async def scene() -> None:
        policy = Scripted()
        stage = Stage(tmp_path, "2x2", policy)
        await one_running(stage, policy, to("a", lambda every: every[2:4]), gpus=2)
        stage.runtime.now += 5
        stage.runtime.exit("a", LEFT)
        await stage.until(lambda: stage.runtime.launched == ["a.1", "a.2"], "it goes on")
        stage.runtime.now += 20
        policy.script = fill
        for job_id in ("b", "c"):
            stage.engine.submit(Job(job_id, stage.runtime.now, 2))
        stage.dispatcher.wake()
        await stage.until(lambda: ("a.2", "reschedule") in stage.runtime.asked, "it is asked to leave")
        stage.runtime.exit("a", LEFT)
        await stage.until(lambda: stage.outcomes("a") == ["moved", "preempted"], "it left")
        await stage.until(lambda: stage.dispatcher.waits("a"), "it waits again")
        behind = stage.job_store.progress("a")
        assert (behind.attempts, behind.ran_s, behind.work_s, behind.preemptions) == (2, 35, 35, 1)

    play(scene)


def test_a_job_changes_its_size(tmp_path: Path) -> None:
    async def scene() -> None:
        policy = Scripted()
        stage = Stage(tmp_path, "1x4", policy)
        ask = {"gpus": 2, "min_gpus": 1, "max_gpus": 4}
        await one_running(stage, policy, to("a", lambda every: every), **ask)
        stage.runtime.exit("a", LEFT)
        await stage.until(lambda: stage.runtime.launched == ["a.1", "a.2"], "it goes on")
        assert len(stage.runtime.live["a"].launch.devices) == 4
        assert stage.outcomes("a") == ["resized"]
        assert "from 2 to 4 GPUs" in stage.gateway.notes["a"]

    play(scene)


@pytest.mark.parametrize("end", ["finishes", "is cancelled"])
def test_a_job_that_ends_instead_of_moving(tmp_path: Path, end: str) -> None:
    async def scene() -> None:
        policy = Scripted()
        stage = Stage(tmp_path, "2x2", policy)
        await one_running(stage, policy, to("a", lambda every: every[2:4]), gpus=2)
        if end == "is cancelled":
            stage.cancel("a")
            stage.runtime.exit("a", LEFT)
        else:
            stage.runtime.exit("a", 0)
        await stage.until(lambda: stage.ends(), "it ends")
        await stage.until(lambda: not stage.dispatcher.executing(), "nobody carries it on")
        assert stage.ends() == {"a": "completed" if end == "finishes" else "cancelled"}
        assert stage.engine.cluster.idle == 4
        assert stage.runtime.launched == ["a.1"]

    play(scene)


def test_two_jobs_change_places(tmp_path: Path) -> None:
    async def scene() -> None:
        policy = Scripted()
        stage = Stage(tmp_path, "2x2", policy)
        stage.submit("a", 2)
        stage.submit("b", 2)
        await stage.running("a", "b")

        def swap(state: State) -> None:
            a, b = state.running["a"], state.running["b"]
            state.draft.preempt("a")
            state.draft.preempt("b")
            state.draft.start(a.job, b.devices)
            state.draft.start(b.job, a.devices)

        policy.script = swap
        stage.engine.swap(policy)
        stage.dispatcher.wake()
        await stage.asked("a", "b")
        stage.runtime.exit("a", LEFT)
        await stage.settle()
        assert set(stage.runtime.live) == {"b"}
        stage.runtime.exit("b", LEFT)
        await stage.running("a", "b")
        assert stage.runtime.live["a"].launch.devices[0].node == "node-2"

    play(scene)


def test_preempted_in_the_middle_of_a_move(tmp_path: Path) -> None:
    async def scene() -> None:
        policy = Scripted()
        stage = Stage(tmp_path, "2x2", policy)
        await one_running(stage, policy, to("a", lambda every: every[2:4]), gpus=2)

        def stop(state: State) -> None:
            state.draft.preempt("a")
            job = next(job for job in state.waiting if job.id == "b")
            state.draft.start(job, tuple(each.device for each in [*state.cluster][1].devices))

        policy.script = stop
        stage.submit("b", 2)
        await stage.running("a", "b")
        assert not stage.waiting(), "it has not left yet"
        stage.runtime.exit("a", LEFT)
        await stage.until(lambda: "a.2" in stage.runtime.launched, "it goes on where it was")
        assert stage.runtime.live["a"].launch.devices[0].node == "node-1"

    play(scene)


# -- workers that come and go --------------------------------------------------------------------


@pytest.mark.parametrize("alive", [True, False])
def test_the_worker_dies_while_a_job_leaves(tmp_path: Path, alive: bool) -> None:
    async def scene() -> None:
        dead = Stage(tmp_path)
        await full(dead)
        await dead.dispatcher.close()
        if not alive:
            dead.runtime.exit("a", LEFT)
            dead.runtime.exit("b", LEFT)
        stage = Stage(tmp_path, runtime=dead.runtime, gateway=dead.gateway)
        for found in await stage.runtime.find():
            stage.dispatcher.adopt(found)
        stage.submit("urgent", 4, priority=1000)
        if alive:
            await stage.until(lambda: stage.runtime.asked.count(("a.1", "reschedule")) == 2, "asked still")
            assert set(stage.runtime.live) == {"a", "b"}
            stage.runtime.exit("a", LEFT)
            stage.runtime.exit("b", LEFT)
        await stage.running("urgent")
        await stage.until(lambda: stage.waiting() == {"a", "b"}, "both wait again")
        assert "Made room for urgent" in stage.gateway.notes["a"], "the reason is remembered"
        assert stage.outcomes("a") == ["preempted"]
        stage.runtime.exit("urgent", 0)
        await stage.running("a", "b")
        assert stage.engine.running["a"].before.preemptions == 1

    play(scene)


def test_the_right_to_act_is_lost_while_a_job_leaves(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.dispatcher.active = False
        stage.runtime.exit("a", LEFT)
        stage.runtime.exit("b", LEFT)
        await stage.until(lambda: not stage.dispatcher.executing(), "what was begun is brought to its end")
        assert stage.gateway.states == {"a": "waiting", "b": "waiting", "urgent": "waiting"}
        assert not stage.runtime.live, "but nothing new is begun"
        stage.dispatcher.active = True
        stage.dispatcher.wake()
        await stage.running("urgent")

    play(scene)


def test_the_server_is_away_when_the_devices_are_free(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        await full(stage)
        stage.gateway.reachable = False
        stage.runtime.exit("a", LEFT)
        stage.runtime.exit("b", LEFT)
        await stage.settle()
        assert not stage.runtime.live
        stage.gateway.reachable = True
        await stage.running("urgent")

    play(scene)


def test_a_job_is_protected_for_a_while_after_its_start(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, protection=Protection(min_run_seconds=60))
        stage.submit("a", 4)
        await stage.running("a")
        stage.runtime.now += 10
        stage.submit("urgent", 4, priority=1000)
        await stage.settle()
        assert not stage.runtime.asked
        assert stage.engine.wake_at == 1060, "and looked at again when that is over"
        stage.runtime.now += 51
        stage.dispatcher.wake()
        await stage.asked("a")

    play(scene)


# -- any order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events(tmp_path: Path, seed: int) -> None:
    """Jobs come, leave, finish, crash and are cancelled, workers and servers come and go, all at random.
    The stage itself fails if a device or a job is ever taken twice. In the end everybody has ended."""

    async def scene() -> None:
        chance = random.Random(seed)
        stage = Stage(tmp_path, "2x2", make(chance))
        jobs: list[tuple[str, dict[str, Any]]] = []
        for step in range(60):
            stage.runtime.now += chance.choice([0, 0.5, 7])
            match chance.choice(["submit", "submit", "exit", "exit", "exit", "cancel", "server", "worker"]):
                case "submit" if len(jobs) < 25:
                    ask = {
                        "gpus": chance.choice([1, 1, 2]),
                        "priority": chance.choice([0, 10, 1000]),
                        "expected_s": chance.choice([5.0, 50.0]),
                    }
                    jobs.append((f"job-{step}", ask))
                    stage.submit(f"job-{step}", **ask)
                case "exit" if stage.runtime.live:
                    stage.runtime.exit(chance.choice(sorted(stage.runtime.live)), leaves(stage, chance))
                case "cancel" if jobs and chance.random() < 0.3:
                    job_id = chance.choice(jobs)[0]
                    if stage.gateway.states[job_id] in ("waiting", "claimed"):
                        stage.cancel(job_id)
                case "server":
                    stage.gateway.reachable = not stage.gateway.reachable
                case "worker" if chance.random() < 0.2:
                    await stage.dispatcher.close()
                    stage = await again(tmp_path, stage, jobs, make(chance))
            for _ in range(chance.choice([0, 1, 3, 10])):
                await asyncio.sleep(0)
            if chance.random() < 0.1:
                await stage.settle()
        stage.gateway.reachable = True
        ended = {"completed", "failed", "cancelled"}
        for _ in range(3000):
            if all(stage.gateway.states[job_id] in ended for job_id, _ in jobs):
                break
            for job_id in sorted(stage.runtime.live):
                stage.runtime.exit(job_id, 0)
            stage.dispatcher.wake()
            await asyncio.sleep(0.001)
        assert {stage.gateway.states[job_id] for job_id, _ in jobs} <= ended
        await stage.until(lambda: not stage.dispatcher.executing(), "nobody is executing")
        assert stage.engine.cluster.idle == 4
        assert not stage.engine.policy_error

    play(scene)


def make(chance: random.Random) -> Any:
    from gpu_flows.schedulers.policy import make_policy

    return make_policy(chance.choice(["priority", "srtf"]))


def leaves(stage: Stage, chance: random.Random) -> int:
    return chance.choice([0, 0, LEFT, LEFT, 1, -9])


async def again(tmp_path: Path, before: Stage, jobs: list[tuple[str, dict[str, Any]]], policy: Any) -> Stage:
    """The next worker: it adopts what runs, and is told by the server of what waits."""
    stage = Stage(tmp_path, "2x2", policy, runtime=before.runtime, gateway=before.gateway)
    for found in await stage.runtime.find():
        stage.dispatcher.adopt(found)
    for job_id, ask in jobs:
        if stage.gateway.states[job_id] == "claimed" and not stage.dispatcher.has_execution(job_id):
            stage.gateway.states[job_id] = "waiting"
        if stage.gateway.states[job_id] == "waiting":
            stage.submit(job_id, **ask)
    return stage
