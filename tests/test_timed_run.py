"""Simulations in which launches, stops and releases take time: no device is held twice, no job is lost."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.protection import Protection
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.outcome import Simulation
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.timed_run import Stopping, TimedRun
from gpu_flows.schedulers.simulation.told_progress import Told
from gpu_flows.schedulers.workload import Arrival

NODES = declare("2x2 + 1x4")
STOP_S, REPORT_S, RELEASE_S, RESTART_S = 3.0, 2.0, 1.5, 4.0
OPTIONS = {"tiresias": {"limits": [20, 60], "quantum": 20}}
STOPS = {"fifo": False, "srtf": True, "tiresias": True, "priority": True, "afs_l": True}


def workload(seed: int, launch_s: float, release_s: float) -> list[Arrival]:
    draw = random.Random(seed)
    made = []
    for number in range(60):
        gpus, priority, user = draw.choice((0, 1, 1, 2, 4)), draw.choice((0, 0, 5)), draw.choice("ab")
        least, most = (1, 4) if gpus == 2 else (0, 0)
        job = Job(
            f"{number:02}",
            draw.uniform(0, 300),
            gpus,
            user=user,
            priority=priority,
            min_gpus=least,
            max_gpus=most,
        )
        made.append(Arrival(job, draw.uniform(0.1, 60), launch_s=launch_s, release_s=release_s))
    return made


def run(policy: str, arrivals: list[Arrival]) -> Simulation:
    timed = TimedRun(
        arrivals,
        NODES,
        make_policy(policy, OPTIONS.get(policy)),
        Conditions(restart_s=RESTART_S),
        stopping=Stopping(STOP_S, REPORT_S),
    )
    # Without protection, two jobs can keep each other from ever being launched.
    timed.engine.set_protection(Protection(min_run_seconds=8, most_preemptions=5))
    for _ in timed.events():
        pass
    assert timed.engine.is_idle
    return timed.simulation


@pytest.mark.parametrize("policy", STOPS)
@pytest.mark.parametrize("seed", range(3))
def test_no_device_is_held_twice_and_every_job_does_its_work(policy: str, seed: int) -> None:
    arrivals = workload(seed, launch_s=2.5, release_s=RELEASE_S)
    found = run(policy, arrivals)
    assert found.policy_error == ""
    assert all(job.ended is not None for job in found.jobs)
    assert (found.preemptions + found.moves > 0) == STOPS[policy]
    holds: dict[str, list[tuple[float, float]]] = {}
    for attempt in found.attempts:
        kept_s = RELEASE_S if attempt.outcome == "completed" else STOP_S
        if attempt.ended > attempt.started:  # else it was preempted before it was launched
            for device in attempt.devices:
                holds.setdefault(device.id, []).append((attempt.started, attempt.ended + kept_s))
    for spans in holds.values():
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(sorted(spans)))


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_a_job_takes_its_work_and_a_restart_after_each_stop(policy: str) -> None:
    arrivals = [each for each in workload(1, 2.5, RELEASE_S) if each.job.gpus != 2]  # those are resized
    found = run(policy, arrivals)
    for job in found.jobs:
        restarts = job.attempts - 1
        if job.arrival.job.gpus:
            assert job.ran_s <= job.arrival.duration_s + restarts * RESTART_S + 1e-6
            assert job.ran_s >= job.arrival.duration_s - 1e-6


@pytest.mark.parametrize("policy", STOPS)
def test_without_any_time_it_is_the_plain_simulation(policy: str) -> None:
    arrivals = workload(4, 0.0, 0.0)
    timed = TimedRun(arrivals, NODES, make_policy(policy, OPTIONS.get(policy)))
    for _ in timed.events():
        pass
    assert (
        timed.simulation.attempts
        == simulate(arrivals, NODES, make_policy(policy, OPTIONS.get(policy))).attempts
    )


def test_a_cancelled_job_leaves_from_wherever_it_is() -> None:
    """One waits, one runs, one is away because its stop is not reported yet, one has ended."""
    jobs = [
        Arrival(Job("ended", 0.0, 4, priority=9), 5.0),
        Arrival(Job("stopped", 0.0, 4), 50.0),
        Arrival(Job("urgent", 20.0, 4, priority=5), 30.0),
        Arrival(Job("waits", 21.0, 4), 5.0),
    ]
    timed = TimedRun(jobs, declare("1x4"), make_policy("priority"), stopping=Stopping(STOP_S, REPORT_S))
    for time, job_id in ((10.0, "ended"), (21.0, "stopped"), (30.0, "waits"), (40.0, "urgent")):
        timed.at(time, lambda now, job_id=job_id: timed.cancel(job_id, now))
    for _ in timed.events():
        pass
    ends = {job.arrival.job.id: (job.ended, job.reason and job.reason.code) for job in timed.simulation.jobs}
    assert ends == {
        "ended": (5.0, None),
        "stopped": (None, "cancelled"),
        "urgent": (None, "cancelled"),
        "waits": (None, "cancelled"),
    }
    assert timed.engine.is_idle
    assert [attempt.outcome for attempt in timed.simulation.attempts] == [
        "completed",
        "preempted",
        "cancelled",
    ]


def test_progress_is_told_at_its_amount_of_work_in_whatever_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches, restarts and stops are no work."""
    arrivals = [
        Arrival(replace(each.job, min_gpus=0, max_gpus=0), each.duration_s, launch_s=2.5, release_s=1)
        for each in workload(1, 0.0, 0.0)
    ]
    told = {
        each.job.id: [
            Told(done, 400 - 7 * done) for done in (1.0, 10.0, 25.0, 50.0) if done < each.duration_s
        ]
        for each in arrivals
    }
    timed = TimedRun(
        arrivals,
        NODES,
        make_policy("srtf"),
        Conditions(restart_s=RESTART_S),
        stopping=Stopping(STOP_S, REPORT_S),
        told=told,
    )
    timed.engine.set_protection(Protection(min_run_seconds=8, most_preemptions=5))
    found: list[tuple[str, float, float]] = []
    expect = timed.engine.expect

    def note(job_id: str, now: float, remaining_s: float) -> None:
        found.append((job_id, now, remaining_s))
        expect(job_id, now, remaining_s)

    monkeypatch.setattr(timed.engine, "expect", note)
    for _ in timed.events():
        pass
    assert timed.simulation.preemptions > 5
    assert len(found) == sum(map(len, told.values()))
    for job_id, amounts in told.items():
        attempts = [each for each in timed.simulation.attempts if each.job_id == job_id]
        tells = [(now, left) for each, now, left in found if each == job_id]
        assert [left for _, left in tells] == pytest.approx([each.left_s for each in amounts])
        for (now, _), each in zip(tells, amounts, strict=True):
            begun = [attempt for attempt in attempts if attempt.started <= now]
            on_devices = sum(min(now, attempt.ended) - attempt.started for attempt in begun)
            assert on_devices - RESTART_S * (len(begun) - 1) == pytest.approx(each.work_s)
