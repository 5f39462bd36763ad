"""What reasons say: help for every code, the end of a protection, jobs that move; who is woken by what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fake_pool import FakePool, ScriptedPolicy, in_event_loop, preempt_two_jobs

from gpu_flows.common.clock import describe_time
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Reason
from gpu_flows.schedulers.policy import Policy, State, make_policy
from gpu_flows.schedulers.protection import Protection
from gpu_flows.schedulers.waiting_queue import Entry, Group


def reasons(engine: Engine, now: float | None = None) -> dict[str, Reason]:
    return {job.id: reason for job, reason in engine.reasons(now=now)}


def engine_with(policy: str, *jobs: Job, cluster: str = "2x2", **options: Any) -> Engine:
    engine = Engine(declare(cluster), make_policy(policy, options), can_preempt=True, protection=Protection())
    for job in jobs:
        engine.submit(job)
    engine.tick(100.0)
    return engine


def test_every_reason_in_the_queue_says_what_helps() -> None:
    full = [Job(f"full-{number}", number, 1) for number in range(3)]
    waiting = [
        Job("fragmented", 10, 2),
        Job("busy", 11, 4, may_span_nodes=True),
        Job("picky", 12, 2, nodes=("node-1",)),
    ]
    engine = engine_with("fifo", *full[:2], Job("spread", 3, 1, nodes=("node-2",)), *waiting)
    found = reasons(engine)
    assert found
    assert all(reason.fix for reason in found.values()), found
    for node in list(engine.cluster.nodes):
        engine.set_node(node, False, "off")
    found = reasons(engine)
    assert {reason.code for reason in found.values()} == {"no_devices"}
    assert all(reason.fix for reason in found.values())


def test_a_drained_node_is_called_drained_and_the_help_takes_it_back() -> None:
    jobs = [Job("picky", 1, 1, nodes=("node-1",)), Job("wide", 2, 4, may_span_nodes=True)]
    engine = engine_with("fifo")
    engine.set_node("node-1", False, "drained")
    for job in jobs:
        engine.submit(job)
    engine.tick(110.0)
    for reason in reasons(engine).values():
        assert reason.summary.endswith("; the node it could use is drained (node-1).")
        assert reason.fix == "`gpu-flows undrain node-1` takes it back into service."
    engine.set_node("node-1", False, "off")
    assert all("node-1 is off" in reason.summary for reason in reasons(engine).values())


def test_a_busy_cluster_offers_what_is_free() -> None:
    engine = engine_with("fifo", Job("a", 1, 1), Job("b", 2, 2), cluster="1x2")
    assert reasons(engine)["b"].fix == "With gpus: 1 it would fit on what is free."


def test_the_reason_says_until_when_a_job_is_protected() -> None:
    engine = engine_with("priority", Job("low", 1, 2, name="low"), cluster="1x2")
    engine.submit(Job("high", 2, 2, priority=9))
    engine.tick(110.0)
    at = describe_time(160.0, 110.0, with_zone=True)
    text = f"low may be preempted for it from {at}; a job is protected for its first 60 s."
    assert text in reasons(engine, now=110.0)["high"].summary
    assert "protected" not in reasons(engine)["high"].summary
    assert engine.tick(159.0) == []
    assert engine.tick(160.0), "it is preempted then"


@pytest.mark.parametrize(
    "running", [Job("low", 1, 2, preemptible=False), Job("low", 1, 2, priority=9), Job("low", 1, 2)]
)
def test_no_time_is_named_that_would_not_come(running: Job) -> None:
    """The running job is never preempted, ranks first, or is no longer protected."""
    engine = engine_with("priority", running, cluster="1x2")
    engine.submit(Job("high", 2, 2, priority=9))
    now = 110.0 if not running.preemptible or running.priority else 1000.0
    assert "may be preempted" not in reasons(engine, now)["high"].summary


def test_the_reasons_of_the_first_places_cost_no_sort_of_the_queue() -> None:
    jobs = [Job(f"{number:05}", number, 1 + number % 3, priority=number % 7) for number in range(3000)]
    engine = engine_with("priority", *jobs, cluster="1x1")
    everything = [job.id for job, _ in engine.reasons()]
    assert everything == [job.id for job in engine._queue]
    with mock.patch.object(Group, "in_order", count_reads(Group.in_order)) as counted:
        assert [job.id for job, _ in engine.reasons(limit=50)] == everything[:50]
    assert counted.reads < 100


def count_reads(in_order: Callable[[Group], Iterator[Entry]]) -> Any:
    """Count the entries that are read from all groups, in the attribute `reads`."""

    def counted(group: Group) -> Iterator[Entry]:
        for entry in in_order(group):
            counted.reads += 1  # type: ignore[attr-defined]
            yield entry

    counted.reads = 0  # type: ignore[attr-defined]
    return counted


# -- jobs that make room ----------------------------------------------------------------------


@in_event_loop
async def test_a_job_that_moves_does_not_wait_for_itself(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    pool = FakePool(tmp_path, "2x1", policy)
    pool.submit("mover")
    await pool.wait_for_running("mover")
    pool.runtime.now += 10

    def move(state: State) -> None:
        (running,) = state.running.values()
        state.draft.preempt("mover")
        other = next(d for node in declare("2x1") for d in node.devices if d not in running.devices)
        state.draft.start(running.job, (other,))

    policy.script = move
    pool.engine.set_protection(Protection(min_run_seconds=0))
    pool.dispatcher.wake()
    await pool.wait_for_stop_request("mover")
    ((job, reason),) = pool.dispatcher.reasons()
    assert (job.id, reason.code) == ("mover", "making_room")
    assert reason.summary == "It moves to other devices: its present attempt saves and stops first."
    assert reason.fix


@in_event_loop
async def test_the_preempted_jobs_are_named_and_their_owners_told(tmp_path: Path) -> None:
    pool = await preempt_two_jobs(tmp_path)
    ((job, reason),) = pool.dispatcher.reasons()
    assert job.id == "urgent"
    assert "waits for a and b to save and stop" in reason.summary.replace("b and a", "a and b")
    for name in "ab":
        (line,) = pool.gateway.told[name]
        assert line.startswith("Asked to save and stop. Preempted for urgent by policy 'priority'.")


# -- utilization ------------------------------------------------------------------------------


class Counting(Policy):
    """Counts its plans."""

    name = "counting"
    moves_running = True

    def __init__(self) -> None:
        super().__init__()
        self.plans = 0

    def plan(self, state: State) -> None:
        self.plans += 1


def test_only_a_policy_that_uses_utilization_plans_when_it_changes() -> None:
    policy = Counting()
    engine = Engine(declare("1x1"), policy)
    (device,) = engine.cluster.devices
    engine.tick(0.0)
    for uses_it, plans in [(False, 1), (True, 2)]:
        policy.uses_utilization = uses_it
        engine.set_utilization({device: 50.0 + plans})
        engine.tick(1.0)
        assert policy.plans == plans


@pytest.mark.parametrize(
    ("options", "uses_it"),
    [({}, False), ({"sharing": "shared"}, True), ({"placement": "fragmentation"}, True)],
)
def test_policies_use_utilization_if_their_options_do(options: dict[str, Any], uses_it: bool) -> None:
    assert make_policy("fifo", options).uses_utilization is uses_it
