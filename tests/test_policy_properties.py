"""Properties of every policy, and the promises that each of them makes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Device, Job, Node
from gpu_flows.schedulers.placement.options import PLACEMENTS
from gpu_flows.schedulers.policy import make_policy, policies
from gpu_flows.schedulers.simulation.simulator import Attempt, Simulation, simulate
from gpu_flows.schedulers.workload import Arrival
from tests.workloads import motley_workloads, workloads

EVERY = sorted(policies())
SHARING = ("schedtune",)  # with its default options it lets jobs share devices
every_policy = pytest.mark.parametrize("policy", EVERY)
quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(policy: str, arrivals: list[Arrival], nodes: list[Node], **options: object) -> Simulation:
    found = simulate(arrivals, nodes, make_policy(policy, options))
    assert not found.policy_error
    return found


def placement_of(policy: str) -> dict[str, object]:
    """Return the placement `any`, for policies that have placements."""
    return {"placement": "any"} if "placement" in policies()[policy].Options.model_fields else {}


@every_policy
@given(arrivals=workloads(most_gpus=5, span=False))
@quick
def test_devices_serve_one_job_at_a_time_and_jobs_get_all_or_nothing(
    policy: str, arrivals: list[Arrival]
) -> None:
    nodes = declare("2x4")
    found = run(policy, arrivals, nodes)
    by_device: dict[str, list[Attempt]] = {}
    for attempt in found.attempts:
        for device in attempt.devices:
            by_device.setdefault(device.id, []).append(attempt)
    for attempts in by_device.values():
        stretches = sorted((each.started, each.ended) for each in attempts)
        assert all(before[1] <= after[0] for before, after in pairwise(stretches))
    for job in found.jobs:
        asked = job.arrival.job.gpus
        if asked > 4:
            assert job.reason is not None
            assert job.reason.code == "impossible"
            continue
        assert job.ended is not None, f"{job.arrival.job.id} never ended: {job.reason}"
        assert job.ran_s == pytest.approx(job.arrival.duration_s), "no time is lost or won"
    for attempt in found.attempts:
        assert len(attempt.devices) == next(
            job.arrival.job.gpus for job in found.jobs if job.arrival.job.id == attempt.job_id
        )
        assert len({device.node for device in attempt.devices}) == 1


MOTLEY = [replace(node, cpus=8.0) for node in declare("2x2:A100:80+2x4:T4:16@1+1x1:A100:40")]
WITH_OPTIONS = [
    *((policy, {}) for policy in EVERY),
    *((policy, {"elastic": True}) for policy in ("fifo", "srtf", "tiresias")),
    *(("srtf", {"placement": placement}) for placement in PLACEMENTS),
    ("srtf", {"by": "service"}),
    ("tiresias", {"discipline": "gittins"}),
    ("round_robin", {"wait_for_turn": True}),
    ("edf", {"preemptive": False}),
    ("gavel", {"objective": "min_makespan"}),
    ("dally", {"timers": "none", "lease_s": 5.0}),
    ("dally", {"timers": "consolidated", "lease_s": 5.0}),
    ("dally", {"timers": "manual", "node_timer_s": 3.0, "rack_timer_s": 6.0, "lease_s": 4.0}),
    ("patient", {"lease_s": 5.0, "move_s": 0.0}),
]


@pytest.mark.parametrize(("policy", "options"), WITH_OPTIONS, ids=str)
@given(arrivals=motley_workloads())
@quick
def test_on_mixed_devices_mixed_jobs_get_what_they_ask_for_and_end(
    policy: str, options: dict[str, object], arrivals: list[Arrival]
) -> None:
    found = run(policy, arrivals, MOTLEY, **options)
    jobs = {job.arrival.job.id: job for job in found.jobs}
    for job in found.jobs:
        impossible = job.reason is not None and job.reason.code == "impossible"
        assert impossible or job.ended is not None, f"{job.arrival.job}: {job.reason}"
    holds: dict[Device, list[tuple[float, float, int]]] = {}
    cpus: dict[str, list[tuple[float, float, float]]] = {}
    for attempt in found.attempts:
        job = jobs[attempt.job_id].arrival.job
        assert len(attempt.devices) == job.gpus or job.least <= len(attempt.devices) <= job.most
        assert all(job.accepts(device) for device in attempt.devices)
        assert job.may_span_nodes or len({device.node for device in attempt.devices}) == 1
        for device in attempt.devices:
            holds.setdefault(device, []).append((attempt.started, attempt.ended, job.memory_mb))
        for node in {device.node for device in attempt.devices}:
            cpus.setdefault(node, []).append((attempt.started, attempt.ended, job.cpus))
    for device, stretches in holds.items():
        if policy in SHARING:
            assert_memory_suffices(device, stretches)
        else:
            assert all(before[1] <= after[0] for before, after in pairwise(sorted(stretches)))
    for stretches in cpus.values():
        for moment, _, _ in stretches:
            assert sum(asked for begin, end, asked in stretches if begin <= moment < end) <= 8


def assert_memory_suffices(device: Device, stretches: list[tuple[float, float, int]]) -> None:
    """Jobs that state their memory share the device while it suffices; one that does not is alone."""
    for moment, _, _ in stretches:
        asked = [memory_mb for begin, end, memory_mb in stretches if begin <= moment < end]
        assert len(asked) < 2 or (all(asked) and sum(asked) <= device.memory_mb)


@every_policy
@given(arrivals=workloads(most_gpus=8))
@quick
def test_the_same_workload_gives_the_same_result(policy: str, arrivals: list[Arrival]) -> None:
    first, second = (run(policy, arrivals, declare("2x4")) for _ in range(2))
    assert first.jobs == second.jobs
    assert first.attempts == second.attempts


@every_policy
@given(arrivals=workloads(most_gpus=5, span=False))
@quick
def test_without_preemption_every_job_still_runs(policy: str, arrivals: list[Arrival]) -> None:
    engine = Engine(declare("2x4"), make_policy(policy))
    for arrival in arrivals:
        engine.submit(arrival.job)
    ends: dict[str, float] = {}
    now = 0.0
    for _ in range(20 * len(arrivals) + 20):
        for action in engine.tick(now):
            assert type(action).__name__ in ("Start", "Refuse")
        assert not engine.policy_error
        for job_id in engine.running:
            ends.setdefault(job_id, now + 10)
        if not engine.running and not engine.waiting:
            break
        due = [at for job_id, at in ends.items() if job_id in engine.running]
        now = max(now, min([*due, *([engine.wake_at] if engine.wake_at is not None else [])], default=now))
        for job_id in [job_id for job_id in engine.running if ends[job_id] <= now]:
            engine.ended(job_id)
    assert not engine.waiting


@pytest.mark.parametrize("policy", [p for p in EVERY if "work conserving" in policies()[p].promises])
@given(arrivals=workloads(most_gpus=8))
@quick
def test_a_work_conserving_policy_uses_every_device_that_a_job_waits_for(
    policy: str, arrivals: list[Arrival]
) -> None:
    found = run(policy, arrivals, declare("2x4"), **placement_of(policy))
    moments = sorted(
        {t for a in found.attempts for t in (a.started, a.ended)} | {a.job.submitted for a in arrivals}
    )
    for moment, following in pairwise(moments):
        held = sum(len(a.devices) for a in found.attempts if a.started <= moment < a.ended)
        runs = {a.job_id for a in found.attempts if a.started <= moment < a.ended}
        for job in found.jobs:
            waits = job.arrival.job.submitted <= moment and (job.ended or 0) > moment
            if waits and job.arrival.job.id not in runs and following > moment:
                assert job.arrival.job.gpus > 8 - held


@pytest.mark.parametrize("policy", [p for p in EVERY if "no starvation" in policies()[p].promises])
def test_a_policy_that_promises_no_starvation_starves_no_job(policy: str) -> None:
    """A wide long job waits among narrow short ones that never release all devices at the same time."""
    narrow = [Arrival(Job(f"{n:04}", submitted=5.0 * n, user=f"u{n % 3}"), 9.0) for n in range(400)]
    wide = Arrival(Job("wide", submitted=7.0, gpus=2, user="w"), 50.0)
    found = run(policy, [*narrow, wide], declare("1x2"))
    started = next(job.started for job in found.jobs if job.arrival.job.id == "wide")
    assert started is not None
    assert started < 1000, "it did not wait until the last other job had arrived"


@given(arrivals=workloads(most_gpus=1))
@quick
def test_srtf_is_best_on_one_device_with_known_durations(arrivals: list[Arrival]) -> None:
    def mean(policy: str) -> float:
        jobs = run(policy, arrivals, declare("1x1")).jobs
        return sum(job.turnaround_s for job in jobs) / len(jobs)

    best = mean("srtf")
    for policy in EVERY:
        assert best <= mean(policy) + 1e-9, policy
