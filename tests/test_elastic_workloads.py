"""Elastic policies on whole workloads: every job ends, no device serves two, and jobs turn around sooner."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Start
from gpu_flows.schedulers.policy import Policy, make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.profiles import SCHEDULEARN, Profile
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.workload import Arrival

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LINEAR = Conditions(
    Profile({("", ""): {1: 1.0}})
)  # unlike the default conditions, it looks at the number of devices
ELASTIC: list[tuple[str, dict[str, object]]] = [
    ("fifo", {"elastic": True}),
    ("fifo", {"elastic": True, "skip": True}),
    ("srtf", {"elastic": True}),
    ("tiresias", {"elastic": True, "limits": [10, 50]}),
    ("ffdl", {}),
    ("afs_l", {}),
]
every = pytest.mark.parametrize(("policy", "options"), ELASTIC)


@st.composite
def elastic_workloads(draw: st.DrawFn, widest: int = 4, rigid: bool = True) -> list[Arrival]:
    arrivals = []
    for number in range(draw(st.integers(1, 16))):
        least = draw(st.integers(1, widest)) if rigid else 1
        most = draw(st.integers(least, widest))
        job = Job(
            id=f"{number:02}",
            submitted=float(draw(st.integers(0, 40))),
            gpus=draw(st.integers(least, most)),
            kind=draw(st.sampled_from(["", "keras-mnist", "pytorch-resnet"])),
            min_gpus=least,
            max_gpus=most,
            may_span_nodes=draw(st.booleans()) if rigid else True,
        )
        arrivals.append(Arrival(job, float(draw(st.integers(1, 60)))))
    return arrivals


def run(arrivals: list[Arrival], spec: str, policy: Policy, conditions: Conditions) -> Simulation:
    found = simulate(arrivals, declare(spec), policy, conditions)
    assert not found.policy_error
    return found


def moments(found: Simulation) -> list[tuple[float, float]]:
    """The stretches of time in which nothing changes."""
    times = {t for each in found.attempts for t in (each.started, each.ended)}
    return list(pairwise(sorted(times | {job.arrival.job.submitted for job in found.jobs})))


@every
@given(arrivals=elastic_workloads(), restart_s=st.sampled_from([0.0, 3.0]), breaks=st.booleans())
@settings(quick, max_examples=10)
def test_every_job_ends_and_no_device_serves_two(
    policy: str, options: dict[str, object], arrivals: list[Arrival], restart_s: float, breaks: bool
) -> None:
    conditions = Conditions(
        SCHEDULEARN, restart_s=restart_s, node_mtbf_s=100.0 if breaks else 0.0, repair_s=10.0
    )
    found = run(arrivals, "2x4", make_policy(policy, options), conditions)
    jobs = {job.arrival.job.id: job for job in found.jobs}
    assert all(job.ended is not None for job in jobs.values())
    stretches: dict[str, list[tuple[float, float]]] = {}
    for attempt in found.attempts:
        job = jobs[attempt.job_id].arrival.job
        assert job.least <= len(attempt.devices) <= job.most
        assert job.may_span_nodes or len({device.node for device in attempt.devices}) == 1
        for device in attempt.devices:
            stretches.setdefault(device.id, []).append((attempt.started, attempt.ended))
    for each in stretches.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(each)))


@pytest.mark.parametrize(("policy", "options"), [("fifo", {"elastic": True}), ("ffdl", {})])
@given(arrivals=elastic_workloads())
@quick
def test_the_oldest_job_always_runs(policy: str, options: dict[str, object], arrivals: list[Arrival]) -> None:
    found = run(arrivals, "2x4", make_policy(policy, options), LINEAR)
    for moment, _ in moments(found):
        present = [
            job.arrival.job
            for job in found.jobs
            if job.arrival.job.submitted <= moment < (job.ended or math.inf)
        ]
        running = {each.job_id for each in found.attempts if each.started <= moment < each.ended}
        if present:
            assert min(present, key=lambda job: job.order).id in running


@every
@given(arrivals=elastic_workloads(widest=8, rigid=False))
@settings(quick, max_examples=10)
def test_no_device_is_idle_while_a_job_could_use_it_and_no_work_is_lost(
    policy: str, options: dict[str, object], arrivals: list[Arrival]
) -> None:
    found = run(arrivals, "2x4", make_policy(policy, options), LINEAR)
    held = sum(len(each.devices) * (each.ended - each.started) for each in found.attempts)
    assert held == pytest.approx(sum(each.duration_s * each.job.gpus for each in arrivals))
    for moment, following in moments(found):
        if following - moment < 1e-6:
            continue
        in_use = sum(len(each.devices) for each in found.attempts if each.started <= moment < each.ended)
        wanted = sum(
            job.arrival.job.most
            for job in found.jobs
            if job.arrival.job.submitted <= moment < (job.ended or math.inf)
        )
        assert in_use == min(8, wanted)


@every
@given(arrivals=elastic_workloads())
@settings(quick, max_examples=10)
def test_without_preemption_no_running_job_is_resized_and_every_job_runs(
    policy: str, options: dict[str, object], arrivals: list[Arrival]
) -> None:
    engine = Engine(declare("2x4"), make_policy(policy, options))
    now = 0.0
    for arrival in arrivals:
        engine.submit(arrival.job)
    while engine.running or engine.waiting:
        now += 1
        actions = engine.tick(now)
        assert not engine.policy_error
        assert all(isinstance(action, Start) for action in actions)
        assert engine.running
        engine.ended(min(engine.running))


def test_elastic_jobs_turn_around_sooner() -> None:
    arrivals = [
        Arrival(Job(f"{n:02}", 30.0 * n, 2, kind="pytorch-mnist", min_gpus=1, max_gpus=4), 89.0)
        for n in range(40)
    ]

    def mean(name: str, **options: object) -> float:
        jobs = run(arrivals, "2x4", make_policy(name, options), Conditions(SCHEDULEARN)).jobs
        return sum(job.turnaround_s for job in jobs) / len(jobs)

    assert mean("fifo", elastic=True) < 0.9 * mean("fifo")
    assert mean("srtf", elastic=True) < 0.9 * mean("srtf")
    assert mean("ffdl") < 0.9 * mean("fifo")
    assert mean("afs_l") < 0.9 * mean("srtf")
