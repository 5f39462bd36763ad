"""The engine under random histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Refuse, Start
from gpu_flows.schedulers.policy import Policy, State, make_policy
from tests.workloads import FailingPolicy

CLUSTER = declare("2x4:A100:80+2x2:T4:16")

BIGGER = declare("2x4:A100:160+2x2:T4:16")  # the same devices, with more memory

jobs = st.builds(
    Job,
    id=st.uuids().map(str),
    submitted=st.floats(0, 1000),
    gpus=st.integers(0, 9),
    memory_mb=st.sampled_from([0, 0, 1024, 8 * 1024, 15 * 1024, 60 * 1024, 200 * 1024]),
    queue_priority=st.integers(0, 2),
    nodes=st.sampled_from([(), (), ("node-1",), ("node-[34]",), ("nowhere",)]),
    models=st.sampled_from([(), (), ("A100",), ("t4",)]),
    may_span_nodes=st.booleans(),
)
policies = st.one_of(
    st.builds(
        make_policy,
        st.just("fifo"),
        st.fixed_dictionaries({"sharing": st.sampled_from(["exclusive", "shared"]), "skip": st.booleans()}),
    ),
    st.builds(
        make_policy,
        st.just("round_robin"),
        st.fixed_dictionaries(
            {"sharing": st.sampled_from(["exclusive", "shared"]), "wait_for_turn": st.booleans()}
        ),
    ),
)


class AnyHistory(RuleBasedStateMachine):
    """Submits, ends, failures, swaps in any order: devices are never promised twice, a job gets all
    its devices or none, and every job is waiting, running, ended or refused with a reason."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(CLUSTER, make_policy("fifo"))
        self.now = 0.0
        self.submitted: dict[str, Job] = {}
        self.gone: set[str] = set()
        self.refused: dict[str, str] = {}

    @rule(job=jobs)
    def submit(self, job: Job) -> None:
        self.engine.submit(job)
        self.submitted[job.id] = job

    @rule()
    def tick(self) -> None:
        self.now += 1
        for action in self.engine.tick(self.now):
            if isinstance(action, Refuse):
                assert action.reason.summary
                self.refused[action.job.id] = action.reason.code
            else:
                assert len(action.devices) == action.job.gpus
                self.engine.started(action.job.id, self.now, 1)

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.engine.running)))
        self.engine.ended(job_id)
        self.gone.add(job_id)

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        self.engine.requeue(data.draw(st.sampled_from(sorted(self.engine.running))))

    @precondition(lambda self: self.engine.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.engine.waiting))
        self.engine.withdraw(job.id)
        self.gone.add(job.id)

    @rule(policy=policies)
    def swap(self, policy: Policy) -> None:
        self.engine.swap(policy)

    @rule()
    def swap_to_a_failing_policy(self) -> None:
        self.engine.swap(FailingPolicy())

    @rule(index=st.integers(0, 11), healthy=st.booleans())
    def health(self, index: int, healthy: bool) -> None:
        device = list(self.engine.cluster.devices)[index % len(self.engine.cluster.devices)]
        self.engine.set_health(device, healthy, "" if healthy else "Xid 79")

    @rule(index=st.integers(0, 3), up=st.booleans())
    def node(self, index: int, up: bool) -> None:
        names = list(self.engine.cluster.nodes)
        self.engine.set_node(names[index % len(names)], up, "" if up else "unplugged")

    @rule(job=jobs, data=st.data())
    def adopt(self, job: Job, data: st.DataObject) -> None:
        """A job turns up that runs already, on any devices there ever were."""
        devices = [device for node in CLUSTER for device in node.devices]
        chosen = data.draw(st.permutations(devices))[: job.gpus]
        spans = len({device.node for device in chosen}) > 1
        fits = all(device.memory_mb >= job.memory_mb for device in chosen)
        if fits and (job.may_span_nodes or not spans) and self.engine.adopt(job, tuple(chosen), self.now, 1):
            self.submitted[job.id] = job

    @rule(spec=st.sampled_from([CLUSTER, CLUSTER[:2], CLUSTER[1:], declare("1x2:A100:80"), BIGGER]))
    def redeclare(self, spec: Any) -> None:
        self.engine.set_nodes(spec)

    @rule(percent=st.floats(0, 100))
    def observe(self, percent: float) -> None:
        self.engine.set_utilization(dict.fromkeys(self.engine.cluster.devices, percent))

    @invariant()
    def memory_is_never_exceeded(self) -> None:
        for state in self.engine.cluster.devices.values():
            if state.healthy:  # a device may shrink under its holders by a new declaration
                assert sum(state.holders.values()) <= state.device.memory_mb or len(state.holders) == 1
            assert state.free_mb == state.device.memory_mb - sum(state.holders.values())
            whole = [j for j in state.holders if self.engine.running[j].job.memory_mb == 0]
            assert not whole or len(state.holders) == 1, "a whole device has one holder"

    @invariant()
    def holders_are_the_running_jobs(self) -> None:
        held: dict[str, set[str]] = {}
        for device_id, state in self.engine.cluster.devices.items():
            for job_id in state.holders:
                held.setdefault(job_id, set()).add(device_id)
        assert held == {
            job_id: {device.id for device in running.devices}
            for job_id, running in self.engine.running.items()
            if running.devices
        }
        for running in self.engine.running.values():
            assert len(running.devices) == running.job.gpus
            assert running.job.may_span_nodes or len(running.nodes) <= 1

    @invariant()
    def idle_counts_are_right(self) -> None:
        for node in self.engine.cluster.nodes.values():
            assert node.idle == sum(1 for s in node.devices if s.healthy and not s.holders)

    @invariant()
    def nothing_is_lost(self) -> None:
        waiting = {job.id for job in self.engine.waiting}
        running = set(self.engine.running)
        assert not waiting & running
        assert waiting | running | self.gone | set(self.refused) >= set(self.submitted)
        assert [job.order for job in self.engine.waiting] == sorted(job.order for job in self.engine.waiting)
        for job, reason in self.engine.reasons():
            assert reason.code in {
                "impossible",
                "no_devices",
                "unhealthy",
                "behind",
                "fragmented",
                "capacity",
            }
            assert job.id not in self.refused


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def drain(engine: Engine, limit: int = 1000) -> list[str]:
    """Let every job run and end, oldest start first; the order in which they started."""
    order = []
    for now in range(limit):
        for action in engine.tick(float(now)):
            assert isinstance(action, Start)
            order.append(action.job.id)
        if not engine.running:
            break
        engine.ended(next(iter(engine.running)))
    return order


@pytest.mark.parametrize("policy", ["fifo", "round_robin"])
def test_every_possible_job_runs_in_arrival_order(policy: str) -> None:
    engine = Engine(declare("3x4"), make_policy(policy))
    for number in range(40):
        engine.submit(Job(id=f"{number:02}", submitted=number, gpus=number % 4 + 1))
    assert drain(engine) == [f"{number:02}" for number in range(40)]


def test_a_swap_keeps_the_state_and_the_running_jobs() -> None:
    engine = Engine(declare("1x4"), make_policy("fifo"))
    for number in range(3):
        engine.submit(Job(id=str(number), submitted=number, gpus=2))
    engine.tick(0)
    running = dict(engine.running)
    engine.swap(make_policy("round_robin"))
    assert engine.tick(1) == []
    assert engine.running == running
    assert [job.id for job in engine.waiting] == ["2"]
    engine.ended("0")
    assert [action.job.id for action in engine.tick(2)] == ["2"]


def test_a_job_that_can_never_fit_is_refused_with_a_reason() -> None:
    engine = Engine(declare("3x4:GTX 1080 Ti:11"), make_policy("fifo"))
    engine.submit(Job(id="wide", gpus=5))
    engine.submit(Job(id="many", gpus=10**6, may_span_nodes=True))
    engine.submit(Job(id="big", memory_mb=12 * 1024))
    engine.submit(Job(id="other", models=("A100",)))
    engine.submit(Job(id="spread", gpus=5, may_span_nodes=True, submitted=1))
    actions = engine.tick(0)
    reasons = {a.job.id: a.reason for a in actions if isinstance(a, Refuse)}
    assert set(reasons) == {"wide", "many", "big", "other"}
    assert "largest node has 4" in reasons["wide"].summary
    assert "whole pool has 12" in reasons["many"].summary
    assert [a.job.id for a in actions if isinstance(a, Start)] == ["spread"]


def test_an_adopted_job_keeps_its_devices() -> None:
    engine = Engine(declare("1x4"), make_policy("fifo"))
    devices = tuple(s.device for s in engine.cluster.devices.values())[1:3]
    assert engine.adopt(Job(id="old", gpus=2), devices, since=5.0, attempt=3)
    engine.submit(Job(id="new", gpus=3))
    assert engine.tick(10) == []
    assert not engine.adopt(Job(id="again", gpus=2), devices, since=6.0, attempt=1), "they are taken"
    engine.ended("old")
    assert [action.job.id for action in engine.tick(11)] == ["new"]


def test_the_network_slows_the_work_of_a_job_that_spans_nodes() -> None:
    engine = Engine(declare("2x1"), make_policy("fifo"), network=lambda job, shape: float(len(shape[0])))
    engine.submit(Job("wide", gpus=2, may_span_nodes=True))
    engine.tick(0.0)
    engine.started("wide", 10.0, 1)
    assert engine.running["wide"].work(30.0) == 10.0
    devices = engine.running["wide"].devices
    engine.ended("wide")
    engine.adopt(Job("wide", gpus=2, may_span_nodes=True), devices, 10.0, 1)
    assert engine.running["wide"].work(30.0) == 10.0, "a worker that takes over counts the same"


def test_a_job_is_adopted_on_unhealthy_or_undeclared_devices() -> None:
    nodes = declare("2x2")
    engine = Engine(nodes[:1], make_policy("fifo"))
    sick = nodes[0].devices[0]
    engine.set_health(sick.id, False, "Xid 79")
    assert engine.adopt(Job(id="on-sick"), (sick,), since=0, attempt=1)
    assert engine.adopt(Job(id="absent", gpus=2), nodes[1].devices, since=0, attempt=1)
    engine.submit(Job(id="new", gpus=2))
    assert engine.tick(0) == []
    engine.set_nodes(nodes)  # the absent node is declared again: its devices are still held
    engine.set_health(sick.id, True)
    assert engine.tick(1) == []
    engine.ended("absent")
    assert [action.devices for action in engine.tick(2)] == [nodes[1].devices]


def test_a_waiting_job_can_change_its_request() -> None:
    engine = Engine(declare("1x4"), make_policy("fifo"))
    engine.submit(Job(id="a", gpus=4))
    engine.tick(0)
    engine.submit(Job(id="b", gpus=4, submitted=1))
    engine.submit(Job(id="b", gpus=1, submitted=1))
    assert [job.gpus for job in engine.waiting] == [1]


def _devices(state: State, count: int) -> Any:
    return tuple(s.device for s in list(state.cluster.devices.values())[:count])


def test_a_policy_is_called_again_at_its_wake_time() -> None:
    class Patient(Policy):
        """Starts nothing before ten o'clock."""

        name = "patient"

        def plan(self, state: State) -> None:
            if state.now < 10:
                state.draft.wake_at(10)
            else:
                state.draft.start(state.waiting[0], _devices(state, 1))

    engine = Engine(declare("1x1"), Patient())
    engine.submit(Job(id="a"))
    assert engine.tick(5) == []
    assert engine.wake_at == 10
    assert engine.tick(9) == []
    assert [action.job.id for action in engine.tick(10)] == ["a"]


def test_a_job_that_asks_for_no_device_starts_before_the_waiting_ones() -> None:
    engine = Engine(declare("1x1"), make_policy("fifo"))
    for number in range(3):
        engine.submit(Job(id=str(number), submitted=number))
    engine.submit(Job(id="coordinator", submitted=9, gpus=0))
    assert [action.job.id for action in engine.tick(0)] == ["coordinator", "0"]
    engine.ended("coordinator")
    assert [job.id for job in engine.waiting] == ["1", "2"]
