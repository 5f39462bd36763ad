"""What if, of jobs whose output tells their progress: policies are told the same in the replay."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
from analytics_history import T, copy_empty_warehouse

from gpu_flows.analytics import simulated_facts
from gpu_flows.analytics.whatif import Choice, Scenario, WhatIf, replay
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.estimates import Stated
from gpu_flows.schedulers.simulation.outcome import Simulation
from gpu_flows.schedulers.simulation.timed_run import TimedRun
from gpu_flows.schedulers.simulation.told_progress import Told, ToldProgress
from gpu_flows.schedulers.workload import Arrival

NODES = declare("1x2")
JOBS = 30
Reports = list[tuple[str, int, float, float]]  # job, attempt, time, remaining seconds


def workload() -> list[Arrival]:
    """Jobs whose stated durations are wrong. Floats and the warehouse hold their times exactly."""
    draw = random.Random(3)
    return [
        Arrival(
            Job(f"job-{n:02}", draw.randrange(1600) / 4, 1, expected_s=float(draw.randrange(10, 100))),
            draw.randrange(40, 300) / 4,
        )
        for n in range(JOBS)
    ]


def progress(arrivals: Sequence[Arrival]) -> dict[str, list[Told]]:
    """Every job tells several times how much is left, first too much and then too little, at moments when
    nothing else happens."""
    told = {}
    for number, each in enumerate(arrivals):
        amounts = [5.0 + 8.0 * step + number / 64 for step in range(int(each.duration_s / 8))]
        told[each.job.id] = [
            Told(done, (each.duration_s - done) * (1.5, 0.75)[step % 2])
            for step, done in enumerate(amounts)
            if done < each.duration_s
        ]
    return told


def run(policy: str, told: Mapping[str, Sequence[Told]]) -> Simulation:
    timed = TimedRun(workload(), NODES, make_policy(policy), estimates=Stated(), told=told)
    for _ in timed.events():
        pass
    return timed.simulation


def list_reports(
    simulation: Simulation, told: Mapping[str, Sequence[Told]]
) -> Iterator[tuple[str, int, float, float]]:
    """Yield when each job did what it told, by its attempts."""
    done: dict[str, float] = {}
    for attempt in sorted(simulation.attempts, key=lambda attempt: attempt.started):
        before = done.get(attempt.job_id, 0.0)
        done[attempt.job_id] = after = before + attempt.ended - attempt.started
        for each in told[attempt.job_id]:
            if before < each.work_s <= after:
                time = attempt.started + each.work_s - before
                yield attempt.job_id, attempt.number, time, each.left_s


def record(folder: Path, policy: str, simulation: Simulation, reports: Reports) -> Path:
    database = copy_empty_warehouse(folder)
    experiment = simulated_facts.Experiment("test", "{}")
    simulated_facts.write_simulations(database, experiment, {policy: simulation}, now=T)
    with duckdb.connect(str(database)) as connection:
        [(pool,)] = connection.execute("select distinct pool from jobs").fetchall()
        connection.executemany(
            "insert into progress_reports values (?, ?, to_timestamp(?), 0.5, ?, 'epochs')",
            [(f"{pool}/{job_id}", *rest) for job_id, *rest in reports],
        )
    return database


def outcomes(scenario: Scenario) -> dict[str, tuple[object, ...]]:
    return {job.name: (job.started, job.ended, job.attempts, job.devices) for job in scenario.jobs}


def is_exact(found: WhatIf) -> bool:
    return outcomes(found.replayed) == outcomes(found.recorded)


def test_policies_are_told_the_progress_that_was_reported(tmp_path: Path) -> None:
    told = progress(workload())
    real = run("srtf", told)
    reports = list(list_reports(real, told))
    found = replay(record(tmp_path, "srtf", real, reports))
    assert is_exact(found)
    assert found.replayed.figures == found.recorded.figures
    assert found.recorded.figures.preemptions > 5
    expected = f"{JOBS} jobs told their progress: policies are told the same when they have done as much."
    assert expected in found.known


def test_without_the_reports_the_replay_differs(tmp_path: Path) -> None:
    found = replay(record(tmp_path, "srtf", run("srtf", progress(workload())), [("none", 1, 0.0, 1.0)]))
    assert not is_exact(found)
    assert not any("progress" in text for text in found.known)


def test_reports_that_were_recorded_only_are_not_told(tmp_path: Path) -> None:
    """A second after another one, or without a noticeable change of the end."""
    told = progress(workload())
    real = run("srtf", told)
    reports = list(list_reports(real, told))
    ends = {(each.job_id, each.number): each.ended for each in real.attempts}
    soon = [(job, n, time + 1, left * 9) for job, n, time, left in reports if time + 1 < ends[job, n]]
    same = [(job, n, time + 4, left - 4) for job, n, time, left in reports if time + 4 < ends[job, n]]
    assert len(soon) > JOBS
    assert len(same) > JOBS
    positive = [each for each in (*reports, *soon, *same) if each[-1] > 0]
    assert is_exact(replay(record(tmp_path, "srtf", real, positive)))


def test_another_policy_is_told_the_same(tmp_path: Path) -> None:
    """The jobs' attempts under FIFO are others than under SRTF."""
    told = progress(workload())
    fifo, srtf = run("fifo", told), run("srtf", told)
    database = record(tmp_path, "fifo", fifo, list(list_reports(fifo, told)))
    [predicted] = replay(database, policies=[Choice("srtf")]).alternatives
    real = {job.arrival.job.id: (job.started, job.ended, job.attempts) for job in srtf.jobs}
    assert {job.name: (job.started, job.ended, job.attempts) for job in predicted.jobs} == real


def test_progress_is_told_once_and_again_after_work_was_lost() -> None:
    first, second = Told(10.0, 30.0), Told(20.0, 20.0)
    progress = ToldProgress({"a": [second, first]})
    assert progress.find_next("b") is None
    assert progress.find_next("a") == first
    progress.note("a", 10.0)
    progress.resume("a", 10.0)
    assert progress.find_next("a") == second
    progress.note("a", 20.0)
    progress.resume("a", 20.0)
    assert progress.find_next("a") is None
    progress.resume("a", 15.0)
    assert progress.find_next("a") == second
