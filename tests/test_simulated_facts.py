"""Simulations as facts: SQL gives the figures of the summary, and a warehouse is a workload again."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from analytics_history import History, T, copy_empty_warehouse

from gpu_flows.analytics import recorded_trace, simulated_facts
from gpu_flows.analytics.sql_files import named_queries
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.simulation.summary import (
    JOB_COLUMNS,
    JobsLost,
    device_use,
    job_rows,
    summarize,
)
from gpu_flows.schedulers.traces import TraceError
from gpu_flows.schedulers.workload import Arrival

NODES = declare("2x2:V100:16 + 1x4:A100:80")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return copy_empty_warehouse(tmp_path)


def workload(jobs: int = 120, seed: int = 7) -> list[Arrival]:
    """Times in quarters of a second, which floats and microseconds both hold exactly."""
    draw = random.Random(seed)
    made = []
    for number in range(jobs):
        job = Job(
            f"job-{number:03}",
            draw.randrange(4000) / 4,
            draw.choice((1, 1, 2, 4, 6)),  # 6 fit nowhere
            draw.choice((0, 4096, 8192)),
            user=draw.choice(("ann", "bob")),
            kind=draw.choice(("cnn", "lstm")),
        )
        made.append(Arrival(job, draw.randrange(1, 400) / 4, draw.choice((25.0, 50.0, 100.0))))
    return made


def ask(database: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def write(database: Path, simulations: dict[str, Simulation]) -> None:
    arrivals = [result.arrival for result in next(iter(simulations.values())).jobs]
    experiment = simulated_facts.Experiment.of("test", {"cluster": "small"}, arrivals)
    simulated_facts.write_simulations(database, experiment, simulations, now=T)


# SQL and the summary agree


@pytest.mark.parametrize("sharing", ["exclusive", "shared"])
@pytest.mark.parametrize(
    "conditions", [Conditions(), Conditions(restart_s=2.5, node_mtbf_s=900, repair_s=60, seed=3)]
)
def test_sql_gives_the_figures_of_the_summary_exactly(
    database: Path, sharing: str, conditions: Conditions
) -> None:
    found = {
        name: simulate(workload(), NODES, make_policy(name, {"sharing": sharing}), conditions)
        for name in ("fifo", "srtf")
    }
    write(database, found)
    for name, simulation in found.items():
        summary = summarize(simulation)
        assert summary.impossible > 0
        columns = (
            "pool, jobs, finished, makespan_s, avg_turnaround_s, avg_queueing_s, restarts, allocation_percent"
        )
        [(pool, *figures)] = ask(database, f"select {columns} from policy_summary where policy = '{name}'")
        restarts = summary.preemptions + summary.moves + summary.losses
        exact = conditions == Conditions()  # else moments are random, and microseconds round them
        assert figures == pytest.approx(
            [
                summary.finished,
                summary.finished,
                summary.makespan_s,
                summary.avg_turnaround_s,
                summary.avg_queueing_s,
                restarts,
                100 * summary.allocation,
            ],
            rel=1e-12 if exact else 1e-6,
        )
        refused = f"select count(*) from failures where outcome = 'refused' and pool = '{pool}'"
        assert ask(database, refused) == [(summary.impossible,)]
    assert ask(database, "select count(*), count(distinct experiment) from experiment_summary") == [(2, 1)]


def test_first_job_that_does_not_end_leaves_the_figures_of_the_others(database: Path) -> None:
    impossible = Arrival(Job("impossible", 0.0, gpus=6), 5.0)
    lost = Arrival(Job("lost", 10.0, gpus=2), 5.0)
    rest = [Arrival(Job(f"job-{number}", 100.0 + number, gpus=2), 50.0) for number in range(4)]
    simulation = simulate([impossible, *rest], NODES, make_policy("fifo"))
    write(database, {"fifo": simulation})
    figure = "select allocation_percent from policy_summary"
    assert ask(database, figure) == [(pytest.approx(100 * summarize(simulation).allocation),)]
    simulation = simulate([lost, *rest], NODES, make_policy("fifo"))
    simulation.jobs[0].ended = None
    write(database, {"lost": simulation})
    tiers = "select tier from attempt_tiers join jobs using (job_id) where name = 'lost'"
    assert ask(database, tiers) == [("node",)]


def test_every_job_attempt_and_device_is_there(database: Path) -> None:
    simulation = simulate(workload(), NODES, make_policy("srtf"))
    write(database, {"srtf": simulation})
    tables = "jobs", "attempts", "attempt_ends", "allocations", "devices", "job_ends"
    kept = [ask(database, f"select count(*) from {table}")[0][0] for table in tables]
    held = sum(len(attempt.devices) for attempt in simulation.attempts)
    attempts = len(simulation.attempts)
    assert kept == [120, attempts, attempts, held, 8, 120]
    job = simulation.jobs[0]
    row = "select epoch(submitted), epoch(first_started), epoch(ended), flow, user_name from job_history"
    asked = job.arrival.job
    assert ask(database, f"{row} where name = '{asked.id}'") == [
        (asked.submitted, job.started, job.ended, asked.kind, asked.user)
    ]


def test_every_named_query_has_a_result(database: Path) -> None:
    write(database, {"fifo": simulate(workload(), NODES, make_policy("fifo"))})
    with duckdb.connect(str(database), read_only=True) as connection:
        for query in named_queries():
            given = {each.name: each.default for each in query.parameters}
            assert connection.execute(query.sql, given).description


def test_recording_a_run_again_changes_nothing_and_another_run_is_added(database: Path) -> None:
    fifo = simulate(workload(), NODES, make_policy("fifo"))
    write(database, {"fifo": fifo})
    write(database, {"fifo": fifo})
    assert ask(database, "select count(*) from jobs") == [(120,)]
    # the policy was changed meanwhile, but not its name
    write(database, {"fifo": simulate(workload(), NODES, make_policy("fifo", {"skip": True}))})
    assert ask(database, "select count(*), count(distinct pool), count(distinct experiment) from jobs") == [
        (240, 2, 1)
    ]


def test_thousands_of_jobs_are_recorded(database: Path) -> None:
    arrivals = [Arrival(Job(f"{n:05}", n * 10.0, 1 + n % 4), 40.0 + n % 97) for n in range(5_000)]
    write(database, {"fifo": simulate(arrivals, declare("8x8"), make_policy("fifo"))})
    assert ask(database, "select finished from policy_summary") == [(5_000,)]


# A warehouse is a trace


def test_a_recorded_pool_is_a_workload(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.run("a", 100, 110, 150, "g0")
    history.job("b", 105)  # preempted once
    history.start("b", 150, "g0", attempt=1)
    history.stop("b", 160, attempt=1, outcome="preempted")
    history.start("b", 170, "g0", attempt=2)
    history.stop("b", 200.5, attempt=2)
    history.end("b", 200.5)
    history.job("waits", 300)
    history.job("refused", 301)
    history.end("refused", 301, "refused")
    history.job("runs", 302)
    history.start("runs", 303, "g0")
    history.query("select 1")  # drained

    trace = recorded_trace.load(tmp_path / "warehouse.duckdb")
    assert [(arrival.job.id, arrival.job.submitted, arrival.duration_s) for arrival in trace.arrivals] == [
        ("a", 0, 40),
        ("b", 5, 40.5),
    ]
    assert (trace.arrivals[0].job.user, trace.arrivals[0].job.kind) == ("ann", "d")
    assert trace.skipped == {"never ran": 2, "has not ended": 1}
    assert len(recorded_trace.load(tmp_path / "warehouse.duckdb", limit=1).arrivals) == 1


def test_a_simulation_is_a_workload_with_the_same_durations(database: Path) -> None:
    arrivals = [arrival for arrival in workload() if arrival.job.gpus <= 4]
    write(database, {"srtf": simulate(arrivals, NODES, make_policy("srtf"))})
    again = recorded_trace.load(database).arrivals
    first = min(arrival.job.submitted for arrival in arrivals)

    def describe(arrival: Arrival, offset: float) -> tuple[object, ...]:
        job = arrival.job
        return job.submitted - offset, job.gpus, job.memory_mb, job.user, job.kind, arrival.duration_s

    assert sorted(describe(arrival, 0) for arrival in again) == sorted(
        describe(arrival, first) for arrival in arrivals
    )


def test_a_warehouse_without_jobs_or_with_several_pools_is_refused(database: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no jobs"):
        recorded_trace.load(database)
    jobs = [Arrival(Job("a"), 1.0)]
    write(database, {name: simulate(jobs, NODES, make_policy(name)) for name in ("fifo", "sjf")})
    with pytest.raises(TraceError, match=r"2 pools; choose one, as in --format warehouse:pool=sim:fifo@"):
        recorded_trace.load(database)
    [(pool,)] = ask(database, "select pool from jobs where pool like 'sim:sjf@%'")
    assert len(recorded_trace.load(database, pool=pool).arrivals) == 1
    with pytest.raises(TraceError, match="no job that ran"):
        recorded_trace.load(database, pool="unknown")
    with pytest.raises(TraceError, match="no warehouse at"):
        recorded_trace.load(tmp_path / "missing.duckdb")
    assert recorded_trace.is_warehouse(database)
    assert not recorded_trace.is_warehouse(Path(__file__))


# The summary


def run(*arrivals: Arrival, policy: str = "fifo", **options: Any) -> Simulation:
    return simulate(arrivals, declare("1x2:GPU:16"), make_policy(policy, options))


def test_percentiles_are_nearest_rank() -> None:
    jobs = [Arrival(Job(f"{n:03}", n * 1000.0), float(n)) for n in range(1, 201)]
    summary = summarize(run(*jobs))
    assert (summary.p50_turnaround_s, summary.p90_turnaround_s, summary.p99_turnaround_s) == (100, 180, 198)
    assert summary.avg_turnaround_s == 100.5


def test_a_shared_device_counts_once_and_is_busy_up_to_its_limit() -> None:
    two = [Arrival(Job(name, 0.0, 1, 8192), 100.0, 70.0) for name in "ab"]
    summary = summarize(run(*two, sharing="shared"))
    assert summary.makespan_s == 100
    assert (summary.allocation, summary.utilization) == (0.5, 0.5)  # one of two devices, 140% is 100%


def test_use_over_time_is_the_mean_of_each_interval() -> None:
    import numpy as np

    use = device_use(run(Arrival(Job("a", 0.0, 2), 50.0, 50.0), Arrival(Job("b", 100.0), 50.0)))
    assert use.held_s == 150
    assert use.over_time(np.array([0.0, 50.0, 75.0, 125.0, 150.0])).tolist() == [0.5, 0, 0.25, 0.5]


def test_figures_are_none_if_no_job_finished() -> None:
    simulation = run(Arrival(Job("wide", 0.0, 9), 5.0))
    summary = summarize(simulation)
    assert (summary.jobs, summary.finished, summary.impossible) == (1, 0, 1)
    assert math.isnan(summary.makespan_s)
    assert math.isnan(summary.p99_turnaround_s)
    [row] = (dict(zip(JOB_COLUMNS, values, strict=True)) for values in job_rows(simulation))
    assert [row[name] for name in ("start", "end", "turnaround", "queueing")] == [None] * 4
    assert row["outcome"] == "impossible"
    assert "9 GPUs" in str(row["reason"])


def test_jobs_that_end_later_or_never_miss_their_deadline() -> None:
    simulation = run(
        Arrival(Job("in time", 5.0, 2, deadline=15.0), 10.0),
        Arrival(Job("late", 6.0, 2, deadline=20.0, priority=3), 10.0),
        Arrival(Job("never", 7.0, 9, deadline=1000.0), 10.0),
        Arrival(Job("whenever", 8.0, 2), 10.0),
    )
    summary = summarize(simulation)
    assert (summary.deadlines, summary.deadlines_missed) == (3, 2)
    assert [row[JOB_COLUMNS.index("deadline") :] for row in job_rows(simulation)] == [
        *((15.0, 0, False), (20.0, 3, True), (1000.0, 0, True), (None, 0, None))
    ]


def test_a_job_that_disappears_is_an_error() -> None:
    simulation = run(Arrival(Job("a"), 5.0), Arrival(Job("b"), 5.0))
    simulation.jobs[1].ended = None
    with pytest.raises(JobsLost, match="1 of 2 jobs have no outcome: b"):
        summarize(simulation)
