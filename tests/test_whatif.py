"""What if: recorded jobs are replayed under the policies that decided, under others, and on other devices."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from analytics_history import History, T, copy_empty_warehouse

from gpu_flows.analytics import recorded_trace, simulated_facts
from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    DeviceSeen,
    JobQueued,
    ProtectionSet,
    SavedWork,
    Swapped,
)
from gpu_flows.analytics.query_runner import run_query
from gpu_flows.analytics.whatif import Choice, NoRecord, Scenario, WhatIf, replay
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.schedulers.simulation.simulator import Run, Simulation, simulate
from gpu_flows.schedulers.workload import Arrival, forget_other_nodes

NODES = declare("2x2:V100:16 + 1x4:A100:80")
POLICIES = ("fifo", "srtf", "tiresias", "round_robin", "priority", "fair_share", "edf", "gavel", "patient")


def workload(jobs: int = 60, seed: int = 7) -> list[Arrival]:
    """Jobs with all kinds of constraints. Times are in quarters of a second, which floats hold exactly."""
    draw = random.Random(seed)
    made = []
    for number in range(jobs):
        submitted = draw.randrange(1200) / 4
        job = Job(
            f"job-{number:03}",
            submitted,
            draw.choice((0, 1, 1, 2, 4, 6)),  # 6 fit nowhere, unless they may span nodes
            draw.choice((0, 4096, 20_000)),
            user=draw.choice(("ann", "bob")),
            kind=draw.choice(("cnn", "lstm")),
            queue_priority=draw.choice((0, 0, 1)),
            priority=draw.choice((0, 0, 5)),
            deadline=submitted + 200,
            nodes=draw.choice(((), (), ("node-1", "node-3"))),
            models=draw.choice(((), (), ("A100",))),
            may_span_nodes=draw.random() < 0.3,
            preemptible=draw.random() < 0.8,
        )
        made.append(Arrival(job, draw.randrange(1, 400) / 4))
    return made


def write(database: Path, **simulations: Simulation) -> None:
    experiment = simulated_facts.Experiment("test", "{}")
    simulated_facts.write_simulations(database, experiment, simulations, now=T)


@cache
def recorded_policies() -> TemporaryDirectory[str]:
    """A warehouse with the same workload under many policies, one of them swapped twice."""
    folder = TemporaryDirectory(prefix="gpu-flows-whatif-")
    database = copy_empty_warehouse(Path(folder.name))
    found = {name: simulate(workload(), NODES, make_policy(name)) for name in POLICIES}
    swapped = Run(workload(), NODES, make_policy("fifo", {"skip": True}))
    swapped.at(90.25, lambda now: swapped.swap(make_policy("srtf"), now))
    swapped.at(200.0, lambda now: swapped.swap(make_policy("tiresias"), now))
    for _ in swapped.events():
        pass
    write(database, **found, **{"fifo:skip=true": swapped.simulation})
    return folder


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return Path(shutil.copy(Path(recorded_policies().name, "warehouse.duckdb"), tmp_path))


def find_pool(database: Path, policy: str) -> str:
    rows = run_query(database, "select distinct pool from jobs").rows
    [pool] = [pool for (pool,) in rows if pool.startswith(f"sim:{policy}@")]
    return str(pool)


def outcomes(scenario: Scenario) -> dict[str, tuple[object, ...]]:
    return {
        job.name: (job.started, job.ended, job.ran_s, job.attempts, sorted(job.devices))
        for job in scenario.jobs
    }


# The replay of what ran is what happened


@pytest.mark.parametrize("policy", [*POLICIES, "fifo:skip=true"])
def test_a_replay_repeats_a_simulation_exactly(policy: str) -> None:
    database = Path(recorded_policies().name, "warehouse.duckdb")
    found = replay(database, find_pool(database, policy))
    assert len(found.recorded.jobs) > 30
    assert outcomes(found.replayed) == outcomes(found.recorded)
    assert found.replayed.figures == found.recorded.figures
    preempts = policy in ("srtf", "tiresias", "priority", "edf", "fifo:skip=true")
    assert (found.recorded.figures.preemptions > 0) == preempts
    expected = "fifo:skip=true, then srtf, then tiresias" if ":" in policy else policy
    assert found.replayed.label == expected


def test_a_prediction_from_another_policy_is_its_simulation() -> None:
    """All that the other policy would see is in the record."""
    database = Path(recorded_policies().name, "warehouse.duckdb")
    pools = {name: find_pool(database, name) for name in ("fifo", "srtf")}
    real = replay(database, pools["srtf"]).recorded
    predicted = replay(database, pools["fifo"], policies=[Choice("srtf")]).alternatives[0]
    assert outcomes(predicted).keys() == outcomes(real).keys()

    def without_devices(scenario: Scenario) -> dict[str, tuple[object, ...]]:
        return {name: values[:-1] for name, values in outcomes(scenario).items()}

    assert without_devices(predicted) == without_devices(real)
    assert predicted.figures == real.figures


def test_resized_jobs_are_replayed_with_their_work(tmp_path: Path) -> None:
    jobs = [
        Arrival(Job(f"job-{n}", n * 20.0, 2, min_gpus=1, max_gpus=4), 30.0 + 7 * (n % 5)) for n in range(20)
    ]
    database = copy_empty_warehouse(tmp_path)
    write(database, afs_l=simulate(jobs, NODES, make_policy("afs_l")))
    found = replay(database)
    real = {job.name: job.ended for job in found.recorded.jobs}
    assert {job.name: job.ended for job in found.replayed.jobs} == pytest.approx(real, abs=1e-3)
    assert found.recorded.figures.moves > 0
    assert "Twice the devices are twice as fast for jobs that can be resized." in found.assumed


# Other devices, other periods


def test_more_and_fewer_devices(database: Path) -> None:
    pool = find_pool(database, "fifo")
    more = replay(database, pool, gpus=6)
    assert (more.recorded.devices, more.alternatives[0].devices) == (8, 14)
    assert more.cluster == "with 1 node of 4 GPUs and 1 node of 2 GPUs more like node-3 (A100)"
    assert more.alternatives[0].figures.avg_turnaround_s < more.replayed.figures.avg_turnaround_s
    assert [effect.user for effect in more.alternatives[0].users] != []
    assert all((effect.change_s or 0) < 0 for effect in more.alternatives[0].users)
    fewer = replay(database, pool, gpus=-5)
    assert fewer.cluster == "without 4 of node-3, 1 of node-2"
    [alternative] = fewer.alternatives
    assert alternative.devices == 3
    missing = {job.name for job in alternative.unfinished}
    assert missing == {job.name for job in fewer.recorded.jobs if job.gpus == 4 or _needs_a100(job.name)}
    assert all("impossible" in job.trouble for job in alternative.unfinished)
    with pytest.raises(ValueError, match="has 8 GPUs; taking 8 away leaves none"):
        replay(database, pool, gpus=-8)


def _needs_a100(name: str) -> bool:
    job = next(each.job for each in workload() if each.job.id == name)
    return bool(job.models) or job.memory_mb > 16_384 or (job.gpus > 3)


def test_another_cluster_ignores_the_names_of_its_nodes(database: Path) -> None:
    pool = find_pool(database, "fifo")
    nodes = declare("1x8:A100:80 + 1x8:V100:16")
    renamed = [
        replace(
            node,
            name=f"other-{n}",
            devices=tuple(replace(device, node=f"other-{n}") for device in node.devices),
        )
        for n, node in enumerate(nodes)
    ]
    found = replay(database, pool, nodes=renamed, cluster="two large nodes")
    assert found.cluster == "on two large nodes"
    assert found.alternatives[0].unfinished == []


def test_a_period_has_the_jobs_of_its_time_and_those_it_met(database: Path) -> None:
    pool = find_pool(database, "srtf")
    whole, part = replay(database, pool), replay(database, pool, since=100.0, until=200.0)
    assert {job.name for job in part.recorded.jobs} == {
        job.name for job in whole.recorded.jobs if 100 <= job.submitted < 200
    }
    assert any("that competed with them are replayed and not counted" in note for note in part.known)
    # Jobs that ran at the beginning go on where they were, so the others fare as they did.
    assert part.replayed.figures.avg_turnaround_s == pytest.approx(
        part.recorded.figures.avg_turnaround_s, rel=0.01
    )


# A live pool


class LiveHistory(History):
    """Jobs of a live pool, with what it takes to launch, release and stop them."""

    def pool(self, *devices: str, policy: str = "fifo") -> None:
        self.record(Swapped(T, "pool", "", policy, "{}"), ProtectionSet(T, "pool", 5.0, 0))
        for index, device in enumerate(devices):
            self.record(DeviceSeen(device, "pool", "n0", index, "GTX", 11_000, T))

    def queued(self, job_id: str, submitted: float, at: float, **asks: Any) -> None:
        self.job(job_id, submitted)
        self.record(JobQueued.of(Job(job_id, **asks), job_id, T + at))

    def attempt(
        self,
        job_id: str,
        times: tuple[float, float, float, float],
        device: str,
        number: int = 1,
        outcome: str = "completed",
    ) -> None:
        planned, started, ended, released = (T + at for at in times)
        self.record(
            AttemptStarted(job_id, number, "fifo", "process", '["n0"]', planned, started),
            Allocated(job_id, number, device, "n0", 0, started),
            AttemptEnded(job_id, number, ended, outcome, 0, released=released),
        )


@pytest.fixture
def history(tmp_path: Path) -> LiveHistory:
    return LiveHistory(tmp_path)


def replay_history(history: LiveHistory, tmp_path: Path, **choices: Any) -> WhatIf:
    history.query("select 1")  # drained
    return replay(tmp_path / "warehouse.duckdb", **choices)


def ends(scenario: Scenario) -> dict[str, float | None]:
    return {job.job_id: None if job.ended is None else round(job.ended - T, 3) for job in scenario.jobs}


def test_launch_and_release_take_their_time(history: LiveHistory, tmp_path: Path) -> None:
    history.pool("g0")
    for number, job_id in enumerate("abc"):
        history.queued(job_id, 1, 1.5 + number / 10)
        began = 1.5 + 10 * number
        history.attempt(job_id, (began, began + 0.5, began + 9.5, began + 10), "g0")
        history.end(job_id, began + 9.5)
    found = replay_history(history, tmp_path)
    assert ends(found.recorded) == {"a": 11, "b": 21, "c": 31}
    assert ends(found.replayed) == ends(found.recorded)
    assert found.replayed.figures.avg_queueing_s == pytest.approx(found.recorded.figures.avg_queueing_s)
    assert "Launching a job takes 0.5 s (median of 3; each job's own where it was launched)." in found.known


def test_a_stop_takes_its_time(history: LiveHistory, tmp_path: Path) -> None:
    """A job that is preempted is back after 2 s, and its successor starts only when it is gone."""
    history.pool("g0", policy="priority")
    history.queued("low", 0, 0)
    history.attempt("low", (0, 1, 12, 12), "g0", outcome="preempted")
    history.record(
        AttemptInterrupted("low", 1, T + 10, T + 12, "preempted", "priority", '["high"]', T + 13),
        SavedWork("low", 1, 1, 1.0, 1, T + 12, 1, None, None, None, 0.0),
    )
    history.queued("high", 10, 10)
    history.attempt("high", (10, 13, 23, 23), "g0")
    history.end("high", 23)
    history.attempt("low", (23, 24, 40, 40), "g0", number=2)
    history.record(SavedWork("low", 2, 0, 0.0, 0, None, 1, T + 25, 1.0, 1, 0.0))
    history.end("low", 40)
    # their priorities
    history.query("select 1")
    _set_priority(tmp_path / "warehouse.duckdb", "high", 5)
    found = replay_history(history, tmp_path)
    assert ends(found.recorded) == {"low": 40, "high": 23}
    assert ends(found.replayed) == ends(found.recorded)
    assert found.replayed.figures.preemptions == 1
    assert {"Stopping a job takes 2 s (median of 1).", "Loading a checkpoint takes 1 s (median of 1)."} < set(
        found.known
    )


def _set_priority(database: Path, job_id: str, priority: int) -> None:
    import duckdb

    with duckdb.connect(str(database)) as connection:
        connection.execute("update jobs set priority = ? where job_id = ?", [priority, job_id])


def test_protection_holds_in_the_replay(history: LiveHistory, tmp_path: Path) -> None:
    """The urgent job would stop the other at once, but that one is protected for its first five seconds."""
    history.pool("g0")
    for job_id, at in (("low", 0.0), ("high", 2.0)):
        history.queued(job_id, at, at)
    history.attempt("low", (0, 0, 10, 10), "g0")
    history.end("low", 10)
    history.attempt("high", (10, 10, 14, 14), "g0")
    history.end("high", 14)
    history.query("select 1")
    _set_priority(tmp_path / "warehouse.duckdb", "high", 5)
    found = replay_history(history, tmp_path, policies=[Choice("priority")])
    assert ends(found.replayed) == {"low": 10, "high": 14}
    assert ends(found.alternatives[0]) == {"low": 14, "high": 9}


def test_devices_that_were_away_are_away(history: LiveHistory, tmp_path: Path) -> None:
    history.pool("g0", "g1")
    history.health("g1", 5, "sick")
    history.health("g1", 25, "healthy")
    for number, job_id in enumerate("abc"):
        history.queued(job_id, 10, 10)
        began = (10, 20, 25)[number]
        history.attempt(job_id, (began, began, began + 10, began + 10), "g1" if job_id == "c" else "g0")
        history.end(job_id, began + 10)
    found = replay_history(history, tmp_path)
    assert ends(found.replayed) == ends(found.recorded) == {"a": 20, "b": 30, "c": 35}


def test_jobs_without_an_ordinary_end(history: LiveHistory, tmp_path: Path) -> None:
    history.pool("g0")
    history.queued("failed", 0, 0)
    history.attempt("failed", (0, 0, 10, 10), "g0", outcome="failed")
    history.end("failed", 10, "failed")
    history.queued("cancelled", 1, 1, gpus=1)
    history.end("cancelled", 15, "cancelled")
    history.queued("next", 2, 2)
    history.attempt("next", (10, 10, 20, 20), "g0")
    history.end("next", 20)
    history.queued("runs", 3, 3)
    history.record(AttemptStarted("runs", 1, "fifo", "process", '["n0"]', T + 20, T + 20))
    history.record(Allocated("runs", 1, "g0", "n0", 0, T + 20))
    history.queued("waits", 4, 4)
    history.job("refused", 5)
    history.end("refused", 5, "refused")
    found = replay_history(history, tmp_path)
    assert [job.job_id for job in found.recorded.jobs] == ["failed", "next"]
    # The cancelled job is before the next one in the queue, but did not get the device in reality.
    assert ends(found.replayed)["failed"] == 10
    assert "1 job not counted: was cancelled while it waited." in found.known
    assert "1 job not counted: never ran: refused." in found.known
    assert "2 jobs not counted: has not ended." in found.known
    assert any("1 job that still runs" in note for note in found.assumed)


def test_old_jobs_take_any_device_and_that_is_stated(history: LiveHistory, tmp_path: Path) -> None:
    history.device("g0")
    history.swap(0, "", "fifo")
    history.run("a", 0, 5, 10, "g0")
    found = replay_history(history, tmp_path)
    assert ends(found.recorded) == {"a": 10}
    assert any("1 job recorded before gpu-flows kept what jobs ask for" in note for note in found.assumed)
    assert any("protected from preemption as by default" in note for note in found.assumed)


# The same record as a trace


def test_a_recorded_trace_has_the_constraints_of_its_jobs(database: Path) -> None:
    trace = recorded_trace.load(database, find_pool(database, "fifo"))
    asked = {each.job.id: each.job for each in workload()}
    assert len(trace.arrivals) > 30
    assert trace.remark == ""
    names = ("nodes", "models", "may_span_nodes", "preemptible", "queue_priority", "priority")
    for arrival in trace.arrivals:
        job = asked[arrival.job.id.rpartition("/")[2]]
        assert {name: getattr(arrival.job, name) for name in names} == {
            name: getattr(job, name) for name in names
        }


def test_a_trace_of_old_records_says_what_is_missing(history: LiveHistory, tmp_path: Path) -> None:
    history.run("a", 0, 5, 10, "g0")
    history.query("select 1")
    trace = recorded_trace.load(tmp_path / "warehouse.duckdb")
    assert (
        trace.remark
        == "Of 1 jobs the nodes and GPU models that they require were not recorded: they take any."
    )


def test_nodes_of_another_cluster_are_forgotten() -> None:
    job = Job("a", nodes=("dgx*",))
    [here] = forget_other_nodes([Arrival(job, 1.0)], NODES)
    [there] = forget_other_nodes([Arrival(job, 1.0)], declare("1x1:A100:80"))
    assert (here.job.nodes, there.job.nodes) == ((), ())
    own = Arrival(Job("b", nodes=("dgx*", "NODE-2")), 1.0)
    assert forget_other_nodes([own], NODES) == [own]


# What cannot be replayed


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"pool": "nobody"}, NoRecord, "has no job that was submitted in this time"),
        ({"since": 9e9}, NoRecord, "has no job that was submitted in this time"),
        ({"experiment": "none"}, NoRecord, "holds no jobs of experiment 'none'"),
        ({"policies": [Choice("best")]}, PolicyError, "There is no policy 'best'"),
    ],
)
def test_errors_say_what_is_missing(
    history: LiveHistory, tmp_path: Path, choices: dict[str, Any], error: type[Exception], message: str
) -> None:
    history.device("g0")
    history.run("a", 0, 5, 10, "g0")
    with pytest.raises(error, match=message):
        replay_history(history, tmp_path, **choices)


def test_a_file_that_is_no_warehouse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRecord, match="There is no warehouse"):
        replay(tmp_path / "none.duckdb")
