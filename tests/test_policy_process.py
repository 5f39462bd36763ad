"""Policies of other packages: they plan in a process of their own, and can harm nobody but themselves."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from gpu_flows.dispatch import policy_process
from gpu_flows.dispatch.policy_process import PolicyProcess, RemotePolicy, open_policy
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Preempt, Start
from gpu_flows.schedulers.policy import Policy, PolicyError, make_policy
from gpu_flows.schedulers.protection import UNPROTECTED, Protection
from tests.fake_pool import FakePool, in_event_loop

POLICIES = '''
import os, sys, time
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policies.priority import Priority
from gpu_flows.schedulers.policies.srtf import Srtf
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.policy_support.starting import start_in_order

class Newest(Policy[PlacementOptions]):
    """The newest job starts first."""
    name = "newest"
    def rank(self, job, progress):
        return -job.submitted
    def plan(self, state):
        start_in_order(state, self.options)

class Urgent(Priority):
    """The built-in policy, from elsewhere."""
    name = "urgent"

class Shortest(Srtf):
    """The built-in policy, from elsewhere."""
    name = "shortest"

class Bad(Fifo):
    """Does what its job's name says."""
    name = "bad"
    def plan(self, state):
        for job in state.waiting:
            if job.name in DEEDS:
                DEEDS[job.name]()
        super().plan(state)

def recurse(depth=0):
    return recurse(depth + 1) + 1

def hoard():
    Bad.hoard = bytearray(2_000_000_000)

def printing():
    for _ in range(10_000):
        print("noise " * 20)
        os.write(1, b'{"starts": [], "preempts": []}\\n')

DEEDS = {
    "raises": lambda: 1 / 0,
    "exits": lambda: sys.exit(3),
    "dies": lambda: os._exit(3),
    "aborts": os.abort,
    "sleeps": lambda: time.sleep(60),
    "naps": lambda: time.sleep(1.5),
    "recurses": recurse,
    "hoards": hoard,
    "prints": printing,
}
'''


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the policies for child processes, and check that none of these stays."""
    folder = tmp_path / "plugin"
    info = folder / "plugin-1.dist-info"
    info.mkdir(parents=True)
    (folder / "plugin.py").write_text(textwrap.dedent(POLICIES))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    names = {"newest": "Newest", "bad": "Bad", "urgent": "Urgent", "shortest": "Shortest"}
    lines = [f"{name} = plugin:{kind}" for name, kind in names.items()]
    (info / "entry_points.txt").write_text("\n".join(["[gpu_flows.policies]", *lines, ""]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    yield
    assert not [child for child in psutil.Process().children() if "policy_child" in " ".join(child.cmdline())]


async def open_pool(folder: Path, name: str, cluster: str = "1x4") -> FakePool:
    pool = FakePool(folder, cluster)
    policy = await pool.dispatcher.open_policy(name, {}, is_new_choice=False)
    pool.dispatcher.swap(policy, {}, "priority")
    return pool


@in_event_loop
async def test_a_policy_of_another_package_plans_in_its_own_process(tmp_path: Path) -> None:
    pool = await open_pool(tmp_path, "newest", "1x1")
    for job_id in ("first", "second", "third"):
        pool.runtime.now += 1
        pool.submit(job_id)
    await pool.wait_for_running("third")
    assert [job.id for job, _ in pool.engine.reasons()] == ["second", "first"], "in the policy's order"
    pool.submit("fourth")
    pool.runtime.exit("third", 0)
    await pool.wait_for_running("fourth")
    assert not pool.engine.policy_error
    assert pool.engine.active_policy.name == "newest"
    await pool.dispatcher.close()


@pytest.mark.parametrize(
    ("deed", "error"),
    {
        "raises": r"^ZeroDivisionError: division by zero \(plugin.py, line \d+\)$",
        "exits": r"^SystemExit: 3 \(plugin.py, line \d+\)$",
        "dies": "^its process ended with exit code 3$",
        "aborts": "^its process was killed by SIGABRT$",
        "sleeps": "^it did not plan within 8 s$",
        "recurses": "^RecursionError",
        "hoards": "^MemoryError",
    }.items(),
)
def test_a_policy_that_misbehaves_loses_its_place_to_fifo(tmp_path: Path, deed: str, error: str) -> None:
    @in_event_loop
    async def check() -> None:
        pool = await open_pool(tmp_path, "bad")
        pool.submit("before")
        await pool.wait_for_running("before")
        longest, watching = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal longest
            while not watching.is_set():
                began = time.monotonic()
                await asyncio.sleep(0.001)
                longest = max(longest, time.monotonic() - began)

        watcher = asyncio.ensure_future(watch())
        pool.submit(deed)
        pool.submit("after")
        await pool.wait_for_running("before", deed, "after")
        watching.set()
        await watcher
        assert longest < 6, "the event loop went on"
        assert pool.engine.active_policy.name == "fifo"
        assert re.search(error, pool.engine.policy_error), pool.engine.policy_error
        await pool.dispatcher.close()

    with mock.patch.object(policy_process, "PLAN_WITHIN_S", 8.0):
        check()


@in_event_loop
async def test_what_a_policy_prints_does_not_disturb_its_plan(tmp_path: Path) -> None:
    pool = await open_pool(tmp_path, "bad")
    pool.submit("prints")
    await pool.wait_for_running("prints")
    assert not pool.engine.policy_error
    await pool.dispatcher.close()


@in_event_loop
async def test_a_late_plan_is_used_as_far_as_it_still_fits(tmp_path: Path) -> None:
    """The job called `naps` makes the plan late. Meanwhile it is cancelled, and another job arrives."""
    pool = await open_pool(tmp_path, "bad")
    pool.submit("naps")
    await pool.settle()
    assert not pool.runtime.live, "the plan is not there yet"
    pool.cancel("naps")
    pool.submit("other")
    await pool.wait_for_running("other")
    assert not pool.engine.policy_error
    pool.submit("late")
    await pool.wait_for_running("other", "late")
    await pool.dispatcher.close()


@in_event_loop
async def test_an_answer_that_arrives_in_pieces_is_used_when_it_is_complete(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    process = object.__new__(PolicyProcess)
    process._connection, theirs = socket.socketpair()
    process._received, process._process = b"", mock.Mock()
    about = {
        "preempts": False,
        "moves_running": False,
        "uses_utilization": False,
        "shares_devices": False,
        "options": {},
    }
    policy = RemotePolicy.of("pieces", about, process, pool.dispatcher.plan_again)
    pool.dispatcher.swap(policy, {}, "priority")
    pool.submit("a")
    await asyncio.sleep(0.2)
    nothing: dict[str, Any] = {"preempts": [], "wake_at": None, "offers": [], "error": "", "order": []}
    answer = {**nothing, "starts": [["a", ["SIM-node-1-2"]]]}
    line = json.dumps(answer).encode() + b"\n"
    for piece in (line[:10], line[10:40], line[40:]):
        assert not pool.runtime.live
        theirs.send(piece)
        await asyncio.sleep(0.1)
    none = {**answer, "starts": []}
    theirs.send(json.dumps(none).encode() + b"\n")  # asked again, because jobs may have changed meanwhile
    await pool.wait_for_running("a")
    assert [device.id for device in pool.engine.running["a"].devices] == ["SIM-node-1-2"]
    assert not pool.engine.policy_error
    await pool.dispatcher.close()
    theirs.close()


@in_event_loop
async def test_a_policy_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    pool = FakePool(tmp_path)
    with pytest.raises(PolicyError, match="There is no policy 'unknown'"):
        await pool.dispatcher.open_policy("unknown", {}, is_new_choice=True)
    with pytest.raises(PolicyError, match="does not take these options"):
        await pool.dispatcher.open_policy("newest", {"colour": 1}, is_new_choice=True)
    await pool.dispatcher.close()


PAIRS = [("urgent", "priority"), ("shortest", "srtf")]


@pytest.mark.parametrize(("remote", "built_in"), PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_a_policy_decides_in_its_process_as_it_does_in_the_worker(
    remote: str, built_in: str, seed: int
) -> None:
    """The same random history of jobs, ends, failures and nodes leads to the same plans."""
    policies = [asyncio.run(open_policy(remote, {}, lambda: None)), make_policy(built_in)]
    there, here = (_play(policy, random.Random(seed)) for policy in policies)
    assert isinstance(policies[0], RemotePolicy)
    policies[0].close()
    assert there == here
    assert sum(kind == "preempt" for kind, *_ in here) > 3, "the history is worth the comparison"


def _play(policy: Policy, chance: random.Random) -> list[tuple[Any, ...]]:
    protection = chance.choice((UNPROTECTED, Protection(min_run_seconds=3)))
    engine = Engine(declare("3x4"), policy, can_preempt=True, protection=protection)
    events: list[tuple[Any, ...]] = []
    for now in range(120):
        for number in range(chance.randrange(3)):
            gpus, expected = chance.choice((1, 1, 2, 4)), chance.uniform(1, 30)
            job_id = f"{now}-{number}"
            engine.submit(Job(job_id, now, gpus, priority=chance.randrange(3), expected_s=expected))
        for job_id in sorted(engine.running):
            if chance.random() < 0.15:
                engine.ended(job_id)
            elif chance.random() < 0.05:
                engine.requeue(job_id)
        if engine.waiting and chance.random() < 0.1:
            engine.withdraw(engine.waiting[0].id)
        if chance.random() < 0.1:
            engine.set_node(f"node-{chance.randrange(3) + 1}", chance.random() < 0.7, "test")
        if chance.random() < 0.1:
            engine.set_health(f"SIM-node-1-{chance.randrange(4)}", chance.random() < 0.7, "test")
        if now == 60:
            engine.set_nodes(declare("4x4"))
        for action in engine.tick(now):
            if isinstance(action, Start):
                events.append(("start", now, action.job.id, tuple(d.id for d in action.devices)))
                engine.started(action.job.id, now + 0.5, 1)
            elif isinstance(action, Preempt):
                events.append(("preempt", now, action.running.job.id))
        events.append(("order", now, tuple(job.id for job, _ in engine.reasons(20))))
        assert not engine.policy_error
    return events


@in_event_loop
async def test_a_policy_during_whose_plans_the_worker_dies_is_put_aside(tmp_path: Path) -> None:
    for deaths in range(2):
        worker = FakePool(tmp_path)
        policy = await worker.dispatcher.open_policy("priority", {}, is_new_choice=False)
        worker.dispatcher.swap(policy, {}, "")
        assert _die_planning(worker), deaths
    worker = FakePool(tmp_path)
    with pytest.raises(PolicyError, match="'priority' is put aside"):
        await worker.dispatcher.open_policy("priority", {}, is_new_choice=False)
    assert await worker.dispatcher.open_policy("fifo", {}, is_new_choice=False)
    assert await worker.dispatcher.open_policy("priority", {}, is_new_choice=True), (
        "the block was saved again"
    )
    await worker.dispatcher.close()
    worker = FakePool(tmp_path)
    assert await worker.dispatcher.open_policy("priority", {}, is_new_choice=False)
    await worker.dispatcher.close()


def _die_planning(worker: FakePool) -> bool:
    """Plan in a copy of this process that dies in the middle of it."""
    child = os.fork()
    if not child:
        worker.engine.tick = lambda now: os._exit(9)  # type: ignore[method-assign]
        worker.dispatcher._plan()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
