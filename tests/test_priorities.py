"""Priorities and deadlines: the rules by example, and the promises on random workloads."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_pools import pool, run, submit, tick

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import Arrival
from tests.workloads import workloads

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# -- priorities ---------------------------------------------------------------------------------


def test_lower_priorities_are_preempted_and_resume_later() -> None:
    arrivals = [
        Arrival(Job("low", gpus=2), 100.0),
        Arrival(Job("high", submitted=10, gpus=2, priority=1), 50.0),
        Arrival(Job("equal", submitted=20, gpus=2, priority=1), 10.0),
    ]
    found = simulate(arrivals, declare("1x2"), make_policy("priority"))
    assert [(a.job_id, a.started, a.ended, a.outcome) for a in found.attempts] == [
        ("low", 0, 10, "preempted"),
        ("high", 10, 60, "completed"),  # the equal one does not push it out
        ("equal", 60, 70, "completed"),
        ("low", 70, 160, "completed"),  # it did ten seconds of work before
    ]


@pytest.mark.parametrize(("preempt", "option"), [(False, True), (True, False)])
def test_no_job_is_preempted_where_that_is_impossible_or_turned_off(preempt: bool, option: bool) -> None:
    for policy in ("priority", "edf"):
        engine = pool(policy, "1x2", preempt, preemptive=option)
        submit(engine, Job("first", gpus=2, expected_s=10))
        assert tick(engine, 0) == ["first"]
        submit(engine, Job("second"), Job("urgent", priority=9, deadline=1.0))
        assert tick(engine, 1) == []
        engine.ended("first")
        assert tick(engine, 10) == ["urgent", "second"]


def test_a_job_behind_the_first_may_preempt_lower_ones_unless_that_delays_the_first() -> None:
    engine = pool("priority", "2x2", preempt=True)
    submit(
        engine,
        Job("runs", gpus=2, priority=5, expected_s=100),
        Job("peer", priority=5, expected_s=50),
        Job("low", expected_s=1000),
    )
    assert tick(engine, 0) == ["runs", "peer", "low"]
    submit(engine, Job("head", gpus=2, priority=5, expected_s=10))
    submit(engine, Job("long", submitted=1, priority=5, expected_s=60))
    assert tick(engine, 1) == [], "the head gets node-2 when its peer ends, low or not"
    submit(engine, Job("brief", submitted=2, priority=5, expected_s=40))
    assert tick(engine, 2) == ["-low", "brief"]
    engine.ended("brief")
    engine.ended("peer")
    assert tick(engine, 50) == ["head"]


@given(arrivals=workloads(most_gpus=4, span=False))
@quick
def test_the_highest_class_runs_as_if_it_were_alone(arrivals: list[Arrival]) -> None:
    """On one node: where a job runs cannot matter."""
    highest = max(arrival.job.priority for arrival in arrivals)
    alone = [arrival for arrival in arrivals if arrival.job.priority == highest]
    among_others, by_itself = (run("priority", each, declare("1x4")) for each in (arrivals, alone))
    assert all(among_others[job_id] == start for job_id, start in by_itself.items())


# -- deadlines ----------------------------------------------------------------------------------


def test_edf_runs_deadlines_first_and_the_rest_by_arrival() -> None:
    engine = pool("edf", "1x1", preempt=True)
    submit(engine, Job("none"), Job("later", deadline=20.0), Job("sooner", deadline=10.0), Job("none-too"))
    order = tick(engine, 0)
    while engine.running:
        engine.ended(next(iter(engine.running)))
        order += tick(engine, 0)
    assert order == ["sooner", "later", "none", "none-too"]


def test_jobs_without_a_deadline_do_not_preempt_each_other() -> None:
    engine = pool("edf", "1x2", preempt=True)
    submit(engine, Job("runs", submitted=5))
    assert tick(engine, 5) == ["runs"]
    submit(engine, Job("older", gpus=2))
    assert tick(engine, 6) == []
    submit(engine, Job("urgent", submitted=7, gpus=2, deadline=8.0))
    assert tick(engine, 7) == ["-runs", "urgent"]


def feasible(arrivals: list[Arrival]) -> bool:
    """Whether one device can meet all deadlines: no stretch of time is asked for more than it has."""
    jobs = [(each.job.submitted, each.job.deadline or 0.0, each.duration_s) for each in arrivals]
    return all(
        sum(length for start, end, length in jobs if start >= release and end <= deadline)
        <= deadline - release
        for release, _, _ in jobs
        for _, deadline, _ in jobs
        if deadline >= release
    )


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 10), st.integers(0, 60)), min_size=1, max_size=12
    )
)
@quick
def test_edf_meets_every_deadline_that_can_be_met_on_one_device(jobs: list[tuple[int, int, int]]) -> None:
    arrivals: list[Arrival] = []
    for number, (release, length, slack) in enumerate(jobs):
        job = Job(f"{number:02}", submitted=float(release), deadline=float(release + length + slack))
        if feasible([*arrivals, Arrival(job, float(length))]):
            arrivals.append(Arrival(job, float(length)))
    assume(len(arrivals) > 1)
    for job in simulate(arrivals, declare("1x1"), make_policy("edf")).jobs:
        assert (job.ended or math.inf) <= (job.arrival.job.deadline or 0.0)
