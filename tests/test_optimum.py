"""The exact optimum without preemption."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preemptive_optimum import OBJECTIVES

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job, Node
from gpu_flows.schedulers.simulation.bounds import bounds
from gpu_flows.schedulers.simulation.optimum import Placed, optimum
from gpu_flows.schedulers.workload import Arrival

NOISE = 1e-6

unhurried = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def arrival(number: int, duration: float, gpus: int = 1, submitted: float = 0, **ask: Any) -> Arrival:
    return Arrival(Job(id=f"job{number}", submitted=submitted, gpus=gpus, **ask), duration)


@st.composite
def rigid_jobs(draw: st.DrawFn) -> tuple[list[Arrival], list[Node]]:
    nodes = declare(draw(st.sampled_from(["1x1", "1x4", "2x2", "2x3", "1x4+1x2"])))
    largest = max(len(node.devices) for node in nodes)
    return [
        arrival(
            number,
            draw(st.integers(1, 20)),
            gpus=draw(st.integers(1, largest)),
            submitted=draw(st.integers(0, 15)),
            may_span_nodes=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 6)))
    ], nodes


@settings(unhurried, max_examples=15)
@given(rigid_jobs())
def test_optimum_is_never_below_the_bounds(case: tuple[list[Arrival], list[Node]]) -> None:
    jobs, nodes = case
    found = bounds(jobs, nodes)
    for objective in OBJECTIVES:
        best = optimum(jobs, nodes, objective)
        assert best.proven
        assert getattr(found, objective) <= best.value + NOISE
        assert_valid(best.schedule, nodes)


def assert_valid(schedule: Sequence[Placed], nodes: list[Node]) -> None:
    for placed in schedule:
        assert placed.start >= placed.job.submitted
        assert sum(placed.gpus.values()) == placed.job.gpus
        assert placed.job.may_span_nodes or len(placed.gpus) == 1
        for node in nodes:
            running = [other for other in schedule if other.start <= placed.start < other.end]
            assert sum(other.gpus.get(node.name, 0) for other in running) <= len(node.devices)


def test_fractions_of_seconds_count() -> None:
    best = optimum([arrival(0, 0.25, submitted=100.5), arrival(1, 0.5, submitted=100.5)], declare("1x1"))
    assert (best.value, best.proven) == (0.75, True)
    assert optimum([], declare("1x1")).schedule == ()


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (arrival(0, 1, memory_mb=1), "shares devices or is elastic"),
        (arrival(0, 1, min_gpus=1, max_gpus=2), "shares devices or is elastic"),
        (arrival(0, 1, gpus=3), "asks for 3 devices"),
    ],
)
def test_jobs_that_are_not_modelled_are_refused(job: Arrival, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        optimum([job], declare("2x2:A100:40"))


def test_error_without_solver_states_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(ImportError, match=r"pip install 'gpu-flows\[optimum\]'"):
        optimum([], [])
