"""Preemption on devices that jobs share: only as many jobs go as the memory of the new one takes."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Preempt, Start
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.protection import Protection
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import Arrival
from tests.test_policy_properties import MOTLEY, assert_memory_suffices, quick
from tests.workloads import motley_workloads

GB = 1024
numbers = count()


def make_engine(cluster: str, policy: str = "srtf", **options: object) -> Engine:
    return Engine(declare(cluster), make_policy(policy, {"sharing": "shared", **options}), can_preempt=True)


def submit(engine: Engine, name: str, gb: int, seconds: float, **request: object) -> None:
    fields = {"submitted": float(next(numbers)), "memory_mb": gb * GB, "expected_s": seconds, **request}
    engine.submit(Job(name, **fields))  # type: ignore[arg-type]


def moves(engine: Engine, now: float) -> tuple[set[str], set[str]]:
    """Return the jobs that the next plan starts and preempts."""
    actions = engine.tick(now)
    assert not engine.policy_error
    starts = {action.job.id for action in actions if isinstance(action, Start)}
    return starts, {action.running.job.id for action in actions if isinstance(action, Preempt)}


def test_only_as_many_jobs_are_preempted_as_the_memory_takes() -> None:
    engine = make_engine("1x1:T4:16")
    submit(engine, "longest", 4, 900)
    submit(engine, "long", 8, 800)
    submit(engine, "short", 4, 50)
    assert moves(engine, 100.0) == ({"longest", "long", "short"}, set())
    submit(engine, "shorter", 3, 10)
    assert moves(engine, 101.0) == ({"shorter"}, {"longest"})
    assert set(engine.running) == {"long", "short", "shorter"}


def test_a_job_that_need_not_go_stays() -> None:
    engine = make_engine("1x1:T4:16")
    submit(engine, "longest", 2, 900)
    submit(engine, "long", 12, 800)
    assert moves(engine, 100.0)[0] == {"longest", "long"}
    submit(engine, "short", 12, 10)  # without `longest` it would still not fit, without `long` it does
    assert moves(engine, 101.0) == ({"short"}, {"long"})


def test_a_job_for_whole_devices_preempts_all_that_share_one() -> None:
    engine = make_engine("1x1:T4:16")
    submit(engine, "a", 4, 900)
    submit(engine, "b", 4, 800)
    moves(engine, 100.0)
    submit(engine, "whole", 0, 10)
    assert moves(engine, 101.0) == ({"whole"}, {"a", "b"})


def test_a_wide_job_preempts_across_nodes_only_if_it_may() -> None:
    engine = make_engine("2x1:T4:16")
    for name in ("a", "b"):
        submit(engine, name, 10, 900)
    moves(engine, 100.0)
    submit(engine, "wide", 10, 10, gpus=2, may_span_nodes=True)
    assert moves(engine, 101.0) == ({"wide"}, {"a", "b"})


def test_protected_jobs_stay() -> None:
    engine = make_engine("1x1:T4:16")
    engine.set_protection(Protection(min_run_seconds=60))
    submit(engine, "long", 10, 900)
    moves(engine, 100.0)
    submit(engine, "short", 10, 10)
    assert moves(engine, 101.0) == (set(), set())
    assert moves(engine, 160.0) == ({"short"}, {"long"})


def test_a_busy_device_is_taken_only_from_all_its_jobs() -> None:
    engine = make_engine("1x1:T4:16")
    submit(engine, "long", 4, 900)
    submit(engine, "middle", 4, 500)
    moves(engine, 100.0)
    engine.set_utilization({next(iter(engine.cluster.devices)): 95.0})
    submit(engine, "short", 4, 10)
    assert moves(engine, 101.0) == ({"short"}, {"long", "middle"})


def test_a_device_that_a_stranger_keeps_busy_is_not_available() -> None:
    engine = make_engine("1x2:T4:16")
    submit(engine, "long", 10, 900)
    moves(engine, 100.0)
    [unheld] = [each for each, state in engine.cluster.devices.items() if not state.holders]
    engine.set_utilization({unheld: 95.0})
    submit(engine, "wide", 10, 10, gpus=2)
    assert moves(engine, 101.0) == (set(), set()), "no job of ours on it could be preempted"


@pytest.mark.parametrize(("preemptive", "preempted"), [(True, {"low"}), (False, set())])
def test_priority_preempts_on_shared_devices_in_strict_order(preemptive: bool, preempted: set[str]) -> None:
    engine = make_engine("1x1:T4:16", "priority", preemptive=preemptive)
    submit(engine, "low", 10, 900)
    submit(engine, "low-2", 4, 900)
    moves(engine, 100.0)
    submit(engine, "urgent", 10, 900, priority=1)
    submit(engine, "small", 1, 900)
    assert moves(engine, 101.0)[1] == preempted
    assert ("urgent" in engine.running) == preemptive
    assert "small" not in engine.running, "none starts behind one that does not fit"


@pytest.mark.parametrize("policy", ["srtf", "edf", "tiresias", "priority"])
@given(arrivals=motley_workloads())
@quick
def test_mixed_jobs_share_mixed_devices_and_end(policy: str, arrivals: list[Arrival]) -> None:
    found = simulate(arrivals, MOTLEY, make_policy(policy, {"sharing": "shared"}))
    assert not found.policy_error
    jobs = {job.arrival.job.id: job.arrival.job for job in found.jobs}
    for job in found.jobs:
        impossible = job.reason is not None and job.reason.code == "impossible"
        assert impossible or job.ended is not None, f"{job.arrival.job}: {job.reason}"
    for device in {device for attempt in found.attempts for device in attempt.devices}:
        stretches = [
            (attempt.started, attempt.ended, jobs[attempt.job_id].memory_mb)
            for attempt in found.attempts
            if device in attempt.devices
        ]
        assert_memory_suffices(device, stretches)
