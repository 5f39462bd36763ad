"""The engine in trouble: policies that misbehave, devices that are added and removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Device, Job, Node, Plan, Progress, Running, Start
from gpu_flows.schedulers.plan_draft import InvalidMove
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import Policy, State, make_policy, policies
from gpu_flows.schedulers.running_order import RunningRank
from tests.workloads import FailingPolicy


def test_the_error_of_a_policy_names_its_line() -> None:
    engine = Engine(declare("1x4"), FailingPolicy())
    engine.submit(Job(id="a"))
    assert [action.job.id for action in engine.tick(0) if isinstance(action, Start)] == ["a"]
    assert engine.policy_error.startswith("RuntimeError: out of ideas (workloads.py, line ")


class BadOrder(Policy):
    """Has no rank for a job that ran before, and no running_rank for the job called x."""

    name = "bad_order"
    preempts = True

    def rank(self, job: Job, progress: Progress) -> Any:
        if progress.attempts:
            raise RuntimeError("no rank")
        return 0

    def running_rank(self, running: Running) -> RunningRank:
        if running.job.id == "x":
            raise RuntimeError("no running_rank")
        return RunningRank(0)

    def plan(self, state: State) -> None:
        for job_id in list(state.running):
            state.draft.preempt(job_id)
        for job in state.waiting:
            state.draft.start(job, _devices(state, job.gpus))


def test_a_rank_that_raises_in_the_middle_of_a_move_loses_no_job_and_no_device() -> None:
    engine = Engine(declare("1x1"), BadOrder(), can_preempt=True)
    engine.submit(Job(id="long"))
    assert [action.job.id for action in engine.tick(0) if isinstance(action, Start)] == ["long"]
    engine.submit(Job(id="short", submitted=1))
    assert engine.tick(1) == [], "the preemption failed and was rolled back"
    assert "no rank (test_engine_trouble.py, line " in engine.policy_error
    assert list(engine.running) == ["long"]
    assert [job.id for job in engine.waiting] == ["short"]

    engine = Engine(declare("1x1"), BadOrder(), can_preempt=True)
    engine.submit(Job(id="x"))
    assert [action.job.id for action in engine.tick(0) if isinstance(action, Start)] == ["x"], "FIFO's start"
    assert "no running_rank" in engine.policy_error
    engine = Engine(declare("1x1"), BadOrder())
    assert engine.adopt(Job(id="x"), _devices_of(engine), since=0, attempt=1)
    assert not engine.adopt(Job(id="x"), _devices_of(engine), since=0, attempt=1), "it is known to run"
    assert "no running_rank" in engine.policy_error


def test_a_rank_that_raises_for_a_job_without_devices_does_not_stop_the_engine() -> None:
    engine = Engine(declare("1x1"), BadOrder())
    engine.submit(Job(id="x", gpus=0))
    engine.submit(Job(id="y"))
    assert [action.job.id for action in engine.tick(0)] == ["x", "y"]
    assert "no running_rank (test_engine_trouble.py, line " in engine.policy_error


class Incomparable(Fifo):
    """Ranks that Python cannot compare with each other."""

    name = "incomparable"

    def rank(self, job: Job, progress: Progress) -> Any:
        return None if job.gpus == 1 else 5


def test_ranks_that_do_not_compare_still_have_reasons() -> None:
    """While the cluster is full no plan compares them, but the status lists the queue every second."""
    engine = Engine(declare("1x2"), Incomparable())
    engine.submit(Job(id="first", gpus=2))
    engine.tick(0)
    engine.submit(Job(id="narrow", submitted=1, gpus=1))
    engine.submit(Job(id="wide", submitted=2, gpus=2))
    engine.tick(1)
    assert [job.id for job, _ in engine.reasons()] == ["narrow", "wide"], "in arrival order"


def _devices_of(engine: Engine) -> Any:
    return tuple(state.device for state in engine.cluster.devices.values())


def test_a_device_that_moved_to_another_node_is_released_there() -> None:
    device = Device("GPU-1", "a", 0)
    engine = Engine([Node("a", (device,), cpus=8)], make_policy("fifo"))
    engine.submit(Job(id="x", cpus=8))
    engine.tick(0)
    renamed = [Node("b", (replace(device, node="b"),), cpus=8)]
    for nodes in (renamed, [], renamed):  # it may be absent for a while, too
        engine.set_nodes(nodes)
    engine.submit(Job(id="y", submitted=1, cpus=8))
    assert engine.tick(1) == [], "its processors are still taken"
    engine.ended("x")
    assert [action.job.id for action in engine.tick(2)] == ["y"]
    engine.ended("y")
    assert engine.cluster.idle == 1
    assert engine.cluster.nodes["b"].free_cpus == 8


def test_a_preemption_is_rolled_back_on_devices_that_are_no_longer_declared() -> None:
    engine = Engine(declare("2x1"), make_policy("srtf"), can_preempt=True)
    engine.submit(Job(id="long", expected_s=100, gpus=2, may_span_nodes=True))
    engine.tick(0)
    engine.set_nodes(declare("1x1"))
    engine.submit(Job(id="short", expected_s=1, submitted=1))
    engine.submit(Job(id="wide", expected_s=2, submitted=1, gpus=2, may_span_nodes=True))
    engine.tick(1)
    assert not engine.policy_error
    assert list(engine.running) == ["short"]


def test_a_refusal_names_the_processors_that_a_host_lacks() -> None:
    engine = Engine(
        [Node("a", (Device("GPU-1", "a", 0), Device("GPU-2", "a", 1)), cpus=8)], make_policy("fifo")
    )
    engine.submit(Job(id="greedy", cpus=100))
    (refusal,) = engine.tick(0)
    assert "100 processors" in str(refusal.reason)
    engine.submit(Job(id="a", cpus=8))
    engine.submit(Job(id="b", cpus=1, submitted=1))
    engine.tick(1)
    ((_, reason),) = engine.reasons()
    assert reason.code == "capacity"
    assert "such are free, but no node with them has 1 processors left" in reason.summary


@pytest.mark.parametrize("policy", sorted(policies()))
def test_main_memory_is_not_promised_twice(policy: str) -> None:
    devices = tuple(Device(f"GPU-{n}", "a", n) for n in range(4))
    engine = Engine([Node("a", devices, cpus=16, ram_mb=64 * 1024)], make_policy(policy), can_preempt=True)
    for name in "abc":
        engine.submit(Job(id=name, submitted=ord(name), cpus=4, ram_mb=30 * 1024, expected_s=100))
    done: list[str] = []
    for now in range(1000, 9000, 50):
        engine.tick(now)
        assert sum(running.job.ram_mb for running in engine.running.values()) <= 64 * 1024
        for running in [each for each in engine.running.values() if each.since <= now - 100]:
            engine.ended(running.job.id)
            done.append(running.job.id)
    assert sorted(done) == ["a", "b", "c"]
    assert not engine.policy_error


def test_a_job_that_waits_for_main_memory_says_so() -> None:
    devices = tuple(Device(f"GPU-{n}", "a", n) for n in range(4))
    engine = Engine([Node("a", devices, cpus=16, ram_mb=64 * 1024)], make_policy("fifo"))
    for name in "abc":
        engine.submit(Job(id=name, submitted=ord(name), cpus=4, ram_mb=30 * 1024))
    assert [action.job.id for action in engine.tick(1000)] == ["a", "b"]
    ((_, reason),) = engine.reasons()
    assert reason.summary.endswith("no node with them has 4 processors and 30 GB of memory left.")
    engine.ended("a")
    assert [action.job.id for action in engine.tick(1001)] == ["c"]


def test_rollbacks_do_not_fill_the_queue_with_outdated_entries() -> None:
    class Tries(Policy):
        """Starts the first job and rolls that back."""

        name = "tries"

        def plan(self, state: State) -> None:
            for job in state.waiting:
                state.draft.start(job, _devices(state, 1))
                state.draft.rollback()
            state.draft.wake_at(state.now + 1)

    engine = Engine(declare("1x1"), Tries())
    engine.submit(Job(id="a"))
    for now in range(500):
        engine.tick(float(now))
    assert sum(len(group._heap) for group in engine._queue._groups.values()) < 100


class Reranks(Policy):
    """Reranks every job at every plan. From then on the ranks of the job called `broken` raise."""

    name = "reranks"
    moves_running = True
    fails = False

    def rank(self, job: Job, progress: Progress) -> Any:
        if self.fails and job.id == "broken":
            raise RuntimeError("no rank")
        return -job.priority if self.fails else 0

    def running_rank(self, running: Running) -> RunningRank:
        return RunningRank(self.rank(running.job, running.before))

    def plan(self, state: State) -> None:
        self.fails = True
        for job_id in [*state.running, *(job.id for job in state.waiting)]:
            try:
                state.draft.rerank(job_id)
            except RuntimeError:
                assert job_id == "broken"
        with pytest.raises(InvalidMove, match="neither waits nor runs"):
            state.draft.rerank("unknown")


def test_a_rank_that_raises_when_a_job_is_reranked_does_not_lose_the_job() -> None:
    engine = Engine(declare("1x1"), Reranks())
    for name, priority in (("broken", 0), ("low", 1), ("high", 2)):
        engine.submit(Job(id=name, priority=priority, submitted=len(name)))
    assert [job.id for job, _ in engine.reasons()] == ["low", "high", "broken"]
    engine.tick(0)
    assert not engine.policy_error
    assert [job.id for job, _ in engine.reasons()] == ["high", "low", "broken"], (
        "in the new order, and complete"
    )
    engine.swap(make_policy("fifo", {"skip": True}))
    assert [action.job.id for action in engine.tick(1)] == ["low"], "the first to arrive"


def test_a_running_job_whose_rank_raises_keeps_its_old_one() -> None:
    engine = Engine(declare("1x2"), Reranks())
    devices = _devices_of(engine)
    for name, device in zip(("broken", "fine"), devices, strict=True):
        assert engine.adopt(Job(id=name), (device,), since=0, attempt=1)
    engine.tick(0)
    assert not engine.policy_error
    assert {running.job.id for _, running in engine._running_order.last_first(1)} == {"broken", "fine"}


def test_an_error_while_all_jobs_are_reranked_changes_nothing() -> None:
    class ReranksAll(Reranks):
        """Reranks all jobs together."""

        name = "reranks_all"

        def plan(self, state: State) -> None:
            self.fails = True
            state.draft.rerank_all()

    engine = Engine(declare("1x1"), ReranksAll())
    for name in ("a", "broken", "c"):
        engine.submit(Job(id=name))
    assert [action.job.id for action in engine.tick(0)] == ["a"], "FIFO decides"
    assert "no rank" in engine.policy_error
    assert [job.id for job in engine.waiting] == ["broken", "c"]


def _devices(state: State, count: int) -> Any:
    return tuple(s.device for s in list(state.cluster.devices.values())[:count])


class Attempts(Policy):
    """Makes one attempt at a plan."""

    name = "attempts"

    def __init__(self, attempt: Callable[[State], Any]) -> None:
        super().__init__()
        self._attempt = attempt

    def plan(self, state: State) -> None:
        return self._attempt(state)  # type: ignore[no-any-return]


def _start(state: State, *starts: tuple[Job, Any]) -> None:
    for job, devices in starts:
        state.draft.start(job, devices)


BAD_PLANS: dict[str, Callable[[State], Any]] = {
    "raises": lambda s: 1 / 0,
    "returns a plan": lambda s: Plan((Start(s.waiting[0], _devices(s, 2)),)),
    "too few devices": lambda s: _start(s, (s.waiting[0], ())),
    "a device twice": lambda s: _start(s, (s.waiting[0], _devices(s, 1) * 2)),
    "one device for two jobs": lambda s: _start(s, *((job, _devices(s, 2)) for job in list(s.waiting))),
    "a job twice": lambda s: _start(
        s, *((job, devices) for job in s.waiting[:1] for devices in (_devices(s, 2), _devices(s, 4)[2:]))
    ),
    "an unknown job": lambda s: _start(s, (Job(id="unknown", gpus=2), _devices(s, 2))),
    "a job made up": lambda s: _start(s, (Job(id="a", gpus=1), _devices(s, 1))),
    "a device made up": lambda s: _start(
        s, (s.waiting[0], tuple(replace(device, node="node-2") for device in _devices(s, 2)))
    ),
    "across nodes unasked": lambda s: _start(s, (s.waiting[0], _devices(s, 5)[3:])),
    "wakes in the past": lambda s: s.draft.wake_at(s.now),
    "preempts a waiting job": lambda s: s.draft.preempt("a"),
}


@pytest.mark.parametrize("wrong", BAD_PLANS)
def test_a_bad_plan_is_rolled_back_and_fifo_decides_until_the_policy_is_swapped(wrong: str) -> None:
    engine = Engine(declare("2x4"), Attempts(BAD_PLANS[wrong]))
    for name in "ab":
        engine.submit(Job(id=name, gpus=2))
    started = [action.job.id for action in engine.tick(0)]
    assert started == ["a", "b"], "FIFO decides instead"
    assert engine.policy_error
    assert engine.active_policy.name == "fifo"
    assert engine.running["a"].policy == "fifo"
    engine.swap(make_policy("round_robin"))
    assert not engine.policy_error
    assert engine.active_policy.name == "round_robin"
