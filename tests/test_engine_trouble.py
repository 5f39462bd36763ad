"""The engine where things go wrong: policies that misbehave, devices that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Device, Job, Node, Plan, Progress, Running, Start
from gpu_flows.schedulers.policy import Policy, State, make_policy
from gpu_flows.schedulers.running_order import RunningRank


class Raises(Policy):
    """Fails halfway through a plan."""

    name = "raises"

    def plan(self, state: State) -> Plan:
        draft = state.draft
        for job in list(state.waiting)[:1]:
            node = next(iter(state.cluster))
            draft.start(job, tuple(s.device for s in node.devices[: job.gpus]))
        raise RuntimeError("out of ideas")


def test_a_policy_that_raises_is_told_where() -> None:
    engine = Engine(declare("1x4"), Raises())
    engine.submit(Job(id="a"))
    assert [action.job.id for action in engine.tick(0) if isinstance(action, Start)] == ["a"]
    assert engine.policy_error.startswith("RuntimeError: out of ideas (test_engine_trouble.py, line ")


class BadOrder(Policy):
    """Srtf, but it has no rank for who ran before, and no running_rank for the job called x."""

    name = "bad_order"
    preempts = True

    def rank(self, job: Job, progress: Progress) -> Any:
        if progress.attempts:
            raise RuntimeError("no rank")
        return job.order

    def running_rank(self, running: Running) -> RunningRank:
        if running.job.id == "x":
            raise RuntimeError("no running_rank")
        return RunningRank(0)

    def plan(self, state: State) -> Plan:
        for job_id in list(state.running):
            state.draft.preempt(job_id)
        for job in state.waiting:
            state.draft.start(job, _devices(state, job.gpus))
        return state.draft.plan()


def test_an_order_that_fails_in_the_middle_of_a_move_loses_no_job_and_no_device() -> None:
    engine = Engine(declare("1x1"), BadOrder(), can_preempt=True)
    engine.submit(Job(id="long"))
    assert [action.job.id for action in engine.tick(0) if isinstance(action, Start)] == ["long"]
    engine.submit(Job(id="short", submitted=1))
    assert engine.tick(1) == [], "the preemption failed and was taken back whole"
    assert "no rank" in engine.policy_error
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


def _devices_of(engine: Engine) -> Any:
    return tuple(state.device for state in engine.cluster.devices.values())


def test_a_device_that_comes_to_another_node_is_given_back_there() -> None:
    device = Device("GPU-1", "a", 0)
    engine = Engine([Node("a", (device,), cpus=8)], make_policy("fifo"))
    engine.submit(Job(id="x", cpus=8))
    engine.tick(0)
    renamed = [Node("b", (replace(device, node="b"),), cpus=8)]
    for nodes in (renamed, [], renamed):  # it may leave for a while, too
        engine.set_nodes(nodes)
    engine.submit(Job(id="y", submitted=1, cpus=8))
    assert engine.tick(1) == [], "its processors are still taken"
    engine.ended("x")
    assert [action.job.id for action in engine.tick(2)] == ["y"]
    engine.ended("y")
    assert engine.cluster.idle == 1
    assert engine.cluster.nodes["b"].free_cpus == 8


def test_a_preemption_is_taken_back_also_on_devices_that_are_not_declared_any_more() -> None:
    engine = Engine(declare("2x1"), make_policy("srtf"), can_preempt=True)
    engine.submit(Job(id="long", expected_s=100, gpus=2, may_span_nodes=True))
    engine.tick(0)
    engine.set_nodes(declare("1x1"))
    engine.submit(Job(id="short", expected_s=1, submitted=1))
    engine.submit(Job(id="wide", expected_s=2, submitted=1, gpus=2, may_span_nodes=True))
    engine.tick(1)
    assert not engine.policy_error
    assert list(engine.running) == ["short"]


def test_what_a_host_lacks_is_told_as_such() -> None:
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


def test_a_job_that_waits_for_ever_leaves_no_litter_in_the_line() -> None:
    """Tries that are taken back, again and again."""

    class Tries(Policy):
        """Starts the first job and thinks better of it."""

        name = "tries"

        def plan(self, state: State) -> Plan:
            for job in state.waiting:
                state.draft.start(job, _devices(state, 1))
                state.draft.undo()
            return state.draft.plan(state.now + 1)

    engine = Engine(declare("1x1"), Tries())
    engine.submit(Job(id="a"))
    for now in range(500):
        engine.tick(float(now))
    assert sum(len(group.heap) for group in engine._queue._groups.values()) < 100


class Answers(Policy):
    """Answers whatever it was told to."""

    name = "answers"

    def __init__(self, plan: Any) -> None:
        super().__init__()
        self._plan = plan

    def plan(self, state: State) -> Plan:
        return self._plan(state)  # type: ignore[no-any-return]


def _devices(state: State, count: int) -> Any:
    return tuple(s.device for s in list(state.cluster.devices.values())[:count])


BAD_PLANS = {
    "raises": lambda s: 1 / 0,
    "answers nothing": lambda s: None,
    "too few devices": lambda s: Plan((Start(s.waiting[0], ()),)),
    "a device twice": lambda s: Plan((Start(s.waiting[0], _devices(s, 1) * 2),)),
    "one device for two jobs": lambda s: Plan(
        (Start(s.waiting[0], _devices(s, 2)), Start(s.waiting[1], _devices(s, 2)))
    ),
    "a job twice": lambda s: Plan(
        (Start(s.waiting[0], _devices(s, 2)), Start(s.waiting[0], _devices(s, 4)[2:]))
    ),
    "an unknown job": lambda s: Plan((Start(Job(id="who", gpus=2), _devices(s, 2)),)),
    "a job made up": lambda s: Plan((Start(Job(id="a", gpus=1), _devices(s, 1)),)),
    "a device it made up": lambda s: Plan(
        (Start(s.waiting[0], tuple(replace(d, node="node-2") for d in _devices(s, 2))),)
    ),
    "across nodes unasked": lambda s: Plan((Start(s.waiting[0], _devices(s, 5)[3:]),)),
}


@pytest.mark.parametrize("wrong", BAD_PLANS)
def test_a_bad_plan_is_rejected_whole_and_fifo_serves_until_the_policy_is_swapped(wrong: str) -> None:
    engine = Engine(declare("2x4"), Answers(BAD_PLANS[wrong]))
    for name in "ab":
        engine.submit(Job(id=name, gpus=2))
    started = [action.job.id for action in engine.tick(0)]
    assert started == ["a", "b"], "FIFO serves in its stead"
    assert engine.policy_error
    assert engine.active_policy.name == "fifo"
    assert engine.running["a"].policy == "fifo"
    engine.swap(make_policy("round_robin"))
    assert not engine.policy_error
    assert engine.active_policy.name == "round_robin"
