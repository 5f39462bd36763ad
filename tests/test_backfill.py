"""Backfilling: the rules by example, and the promises on random workloads."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_pools import plain, pool, run, submit, tick

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.placement.options import PLACEMENTS
from gpu_flows.schedulers.policies import conservative, priority
from gpu_flows.schedulers.policy_support.backfill import Forecast, Slot
from gpu_flows.schedulers.workload import Arrival
from tests.workloads import workloads

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# -- backfilling by example ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["priority", "conservative", "fair_share"])
def test_later_jobs_pass_the_first_only_where_they_do_not_delay_it(policy: str) -> None:
    engine = pool(policy, "1x4")
    submit(
        engine,
        Job("runs", gpus=2, expected_s=100),
        Job("wide", gpus=3, expected_s=100, user="w"),
        Job("long-wide", gpus=2, expected_s=101, user="x"),  # the wide job does not need one of the devices
        Job("long", gpus=1, expected_s=1000, user="y"),
        Job("late", gpus=1, expected_s=101, user="y"),
        Job("brief", gpus=1, expected_s=100, user="z"),
    )
    assert tick(engine, 0) == ["runs", "long", "brief"]
    engine.ended("brief")
    engine.ended("runs")
    assert "wide" in tick(engine, 100)


@pytest.mark.parametrize(("depth", "started"), [(100, ["runs", "brief"]), (1, ["runs"]), (0, ["runs"])])
def test_a_brief_job_behind_a_long_one_with_the_same_request_is_found(depth: int, started: list[str]) -> None:
    engine = pool("priority", "1x4", depth=depth)
    asked = {"runs": (2, 100), "wide": (4, 100), "long": (2, 101), "brief": (2, 99)}
    submit(engine, *(Job(name, gpus=gpus, expected_s=seconds) for name, (gpus, seconds) in asked.items()))
    assert tick(engine, 0) == started


def test_conservative_reserves_for_the_second_waiting_job_too() -> None:
    """The filler does not delay the head, only the next job: EASY starts it, conservative does not."""
    jobs = [
        Job("runs", gpus=3, expected_s=100),
        Job("head", gpus=3, expected_s=100),
        Job("next", gpus=4, expected_s=100),
        Job("filler", gpus=1, expected_s=1000),
    ]
    started = {}
    for policy in ("priority", "conservative"):
        engine = pool(policy, "1x4")
        submit(engine, *jobs)
        started[policy] = tick(engine, 0)
    assert started == {"priority": ["runs", "filler"], "conservative": ["runs"]}


@pytest.mark.parametrize("policy", ["priority", "conservative", "fair_share"])
def test_without_any_durations_a_wide_job_is_not_starved_by_narrow_ones(policy: str) -> None:
    engine = pool(policy, "2x2")
    submit(engine, Job("a"), Job("b"), Job("c", nodes=("node-2",)), Job("wide", gpus=2))
    submit(engine, *(Job(f"narrow{n}", submitted=1) for n in range(4)))
    assert tick(engine, 1) == ["a", "b", "c"], "what is idle on node-2 is kept for the wide job"
    engine.ended("a")
    assert tick(engine, 2) == ["narrow0"], "one node is kept for it, not both"
    engine.ended("b")
    assert tick(engine, 3) == ["wide"]


@pytest.mark.parametrize("policy", ["priority", "conservative", "fair_share"])
def test_a_job_that_needs_a_repair_delays_no_other_job(policy: str) -> None:
    engine = pool(policy, "2x2")
    engine.set_node("node-2", up=False)
    submit(engine, Job("stuck", gpus=2, nodes=("node-2",)), Job("other", gpus=2), Job("another"))
    assert tick(engine, 0) == ["other"]
    engine.ended("other")
    assert tick(engine, 1) == ["another"]
    engine.set_node("node-2", up=True)
    assert tick(engine, 2) == ["stuck"]


@pytest.mark.parametrize("policy", ["priority", "conservative", "fair_share"])
def test_processors_are_reserved_as_well(policy: str) -> None:
    nodes = [replace(node, cpus=8) for node in declare("1x4")]
    engine = pool(policy, nodes)
    submit(
        engine,
        Job("runs", cpus=6, expected_s=100),
        Job("head", cpus=6, expected_s=100),
        Job("greedy", cpus=3, expected_s=1000),
        Job("brief", cpus=2, expected_s=50),
        Job("modest", expected_s=1000),
    )
    assert tick(engine, 0) == ["runs", "brief", "modest"]
    engine.ended("brief")
    engine.ended("runs")
    assert tick(engine, 100)[0] == "head"


@pytest.mark.parametrize("policy", ["priority", "conservative"])
def test_a_late_job_is_expected_to_take_as_long_again_as_it_is_late(policy: str) -> None:
    engine = pool(policy, "1x2")
    submit(engine, Job("late", expected_s=10), Job("wide", gpus=2, expected_s=10))
    assert tick(engine, 0) == ["late"]
    submit(engine, Job("too-long", submitted=15, expected_s=6), Job("brief", submitted=15, expected_s=5))
    assert tick(engine, 15) == ["brief"]


# -- backfilling on random workloads ------------------------------------------------------------


@contextmanager
def promises(module: ModuleType) -> Iterator[dict[str, float]]:
    """The first start that the policy of this module promises to each job."""
    first: dict[str, float] = {}

    class Recording(Forecast):
        def keep(self, slot: Slot) -> None:
            first.setdefault(slot.job.id, slot.start)
            super().keep(slot)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Forecast", Recording)
        yield first


@pytest.mark.parametrize("module", [priority, conservative])
@given(
    arrivals=workloads(most_gpus=4),
    span=st.booleans(),
    placement=st.sampled_from(sorted(PLACEMENTS)),
    cpus=st.lists(st.sampled_from([0, 0, 4, 8]), min_size=25, max_size=25),
)
@quick
def test_with_exact_durations_every_reservation_is_kept(
    module: ModuleType, arrivals: list[Arrival], span: bool, placement: str, cpus: list[int]
) -> None:
    arrivals = [
        Arrival(
            replace(each.job, may_span_nodes=span or n % 2 == 0, cpus=cpus[n]),
            each.duration_s + 1,  # one that takes no time at all always ends a little early
        )
        for n, each in enumerate(plain(arrivals))
    ]
    nodes = [replace(node, cpus=10) for node in declare("2x4:A100:80+1x2:T4:16")]
    with promises(module) as promised:
        started = run(module.__name__.rpartition(".")[2], arrivals, nodes, placement=placement)
    for job_id, start in promised.items():
        assert started[job_id] <= start


def easy_by_count(arrivals: list[Arrival], gpus: int) -> dict[str, float]:
    """EASY backfill over a number of GPUs as textbooks have it, written for this test alone."""
    coming = sorted(arrivals, key=lambda each: each.job.order)
    line: list[Arrival] = []
    running: list[tuple[float, int]] = []
    started: dict[str, float] = {}
    free = gpus

    def start(arrival: Arrival, now: float) -> None:
        nonlocal free
        line.remove(arrival)
        free -= arrival.job.gpus
        started[arrival.job.id] = now
        heapq.heappush(running, (now + arrival.duration_s, arrival.job.gpus))

    while coming or running:
        now = min(coming[0].job.submitted if coming else math.inf, running[0][0] if running else math.inf)
        while running and running[0][0] == now:
            free += heapq.heappop(running)[1]
        while coming and coming[0].job.submitted == now:
            line.append(coming.pop(0))
        while line and line[0].job.gpus <= free:
            start(line[0], now)
        if not line:
            continue
        available, shadow = free, now
        for end, width in sorted(running):
            if available >= line[0].job.gpus and end > shadow:
                break
            available, shadow = available + width, end
        extra = available - line[0].job.gpus
        for arrival in line[1:]:
            in_time = now + arrival.duration_s <= shadow
            if arrival.job.gpus <= (free if in_time else min(free, extra)):
                extra -= 0 if in_time else arrival.job.gpus
                start(arrival, now)
    return started


@given(arrivals=workloads(most_gpus=8))
@quick
def test_with_equal_priorities_it_equals_plain_easy(arrivals: list[Arrival]) -> None:
    arrivals = plain(arrivals)
    assert run("priority", arrivals, declare("4x2"), placement="any") == easy_by_count(arrivals, 8)


@given(arrivals=workloads(most_gpus=8))
@quick
def test_conservative_starts_no_job_later_than_strict_fifo_does(arrivals: list[Arrival]) -> None:
    arrivals = plain(arrivals)
    fifo = run("fifo", arrivals, declare("4x2"), placement="any")
    backfilled = run("conservative", arrivals, declare("4x2"), placement="any")
    assert all(backfilled[job_id] <= start for job_id, start in fifo.items())


class Histories:
    """What can happen to a pool, drawn at random."""

    jobs = st.builds(
        Job,
        id=st.uuids().map(str),
        submitted=st.integers(0, 50).map(float),
        gpus=st.integers(0, 6),
        user=st.sampled_from("abc"),
        queue_priority=st.integers(0, 1),
        priority=st.integers(0, 2),
        deadline=st.none() | st.floats(0, 200),
        expected_s=st.none() | st.integers(0, 30).map(float),
        models=st.sampled_from([(), (), ("A100",), ("t4",)]),
        cpus=st.sampled_from([0, 0, 4, 8]),
        may_span_nodes=st.booleans(),
    )
    steps = st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.lists(jobs, max_size=4)),
            st.tuples(st.just("end"), st.integers(0, 100)),
            st.tuples(st.just("end what is due"), st.none()),
            st.tuples(st.just("withdraw"), st.integers(0, 100)),
            st.tuples(st.just("health"), st.tuples(st.integers(0, 100), st.booleans())),
            st.tuples(st.just("node"), st.tuples(st.integers(0, 100), st.booleans())),
            st.tuples(st.just("pass time"), st.sampled_from([0.0, 1.0, 5.0, 20.0])),
        ),
        max_size=30,
    )


@pytest.mark.parametrize("policy", ["edf", "priority", "conservative", "fair_share"])
@given(steps=Histories.steps, preempt=st.booleans(), placement=st.sampled_from(sorted(PLACEMENTS)))
@quick
def test_on_failing_nodes_every_plan_is_valid_and_every_job_runs(
    policy: str, steps: list[tuple[str, object]], preempt: bool, placement: str
) -> None:
    nodes = [replace(node, cpus=10) for node in declare("2x4:A100:80+2x2:T4:16")]
    engine = pool(policy, nodes, preempt, placement=placement)
    now = 0.0
    for what, detail in steps:
        match what, detail:
            case "submit", list(jobs):
                for job in jobs:
                    engine.submit(job)
            case "end", int(index) if engine.running:
                engine.ended(sorted(engine.running)[index % len(engine.running)])
            case "end what is due", _:
                for running in list(engine.running.values()):
                    if running.due() <= now:
                        engine.ended(running.job.id)
            case "withdraw", int(index) if engine.waiting:
                engine.withdraw(engine.waiting[index % len(engine.waiting)].id)
            case "health", (int(index), bool(healthy)):
                engine.set_health(sorted(engine.cluster.devices)[index % 12], healthy)
            case "node", (int(index), bool(up)):
                engine.set_node(sorted(engine.cluster.nodes)[index % 4], up)
            case "pass time", float(seconds):
                now += seconds
        tick(engine, now)
    for name in engine.cluster.nodes:
        engine.set_node(name, up=True)
    for device in engine.cluster.devices:
        engine.set_health(device, healthy=True)
    while tick(engine, now) or engine.running:
        now += 1
        engine.ended(min(engine.running))
    assert not engine.waiting
