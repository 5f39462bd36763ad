"""Preemptions in SQL: which jobs were stopped, at what cost, how they continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from analytics_history import History, T

from gpu_flows.analytics.facts import Allocated, AttemptInterrupted, AttemptStarted, SavedWork
from gpu_flows.analytics.query_runner import run_query
from gpu_flows.analytics.recorded_trace import Costs, load_costs
from gpu_flows.cli.simulation.inputs import read_inputs
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.schedulers.traces import TraceError


def start(history: History, job: str, attempt: int, at: float, node: str, gpus: int = 1) -> None:
    history.record(
        AttemptStarted(job, attempt, "priority", "process", json.dumps([node]), T + at, T + at),
        *(Allocated(job, attempt, f"{node}-{n}", node, 0, T + at) for n in range(gpus)),
    )


def interrupt(
    history: History, job: str, attempt: int, requested: float, released: float, kind: str, lost: float
) -> None:
    history.stop(job, released, attempt, kind)
    history.record(
        AttemptInterrupted(job, attempt, T + requested, T + released, kind, "priority", '["boss"]'),
        saved(job, attempt, lost=lost),
    )


def saved(job: str, attempt: int, restored: float | None = None, lost: float = 0.0) -> SavedWork:
    when = None if restored is None else T + restored
    took = None if restored is None else 0.5
    return SavedWork(job, attempt, 2, 0.4, 1000, T, 7, when, took, None, lost)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Job a is preempted and resumes on another node; job b is resized on its node."""
    history = History(tmp_path)
    for job in ("a", "b", "boss"):
        history.job(job, 0)
    start(history, "a", 1, 0, "n1")
    interrupt(history, "a", 1, requested=100, released=104, kind="preempted", lost=30)
    start(history, "a", 2, 150, "n2")
    history.record(saved("a", 2, restored=159))
    start(history, "b", 1, 0, "n1", gpus=2)
    interrupt(history, "b", 1, requested=50, released=52, kind="resized", lost=0)
    start(history, "b", 2, 53, "n1", gpus=4)
    history.record(saved("b", 2, restored=58))
    return history


def test_a_suspended_job_does_not_count_as_waiting(tmp_path: Path) -> None:
    history = History(tmp_path)
    for job in ("resumed", "suspended", "waiting"):
        history.job(job, 0)
    for job in ("resumed", "suspended"):
        start(history, job, 1, 10, "n1")
        history.stop(job, 20, 1, "suspended")
    start(history, "resumed", 2, 30, "n1")
    states = history.query("select name, state from job_history order by name")
    assert states == [("resumed", "running"), ("suspended", "suspended"), ("waiting", "waiting")]
    assert history.query("select name from waiting_now") == [("waiting",)]


def test_how_jobs_were_stopped_and_continued(history: History) -> None:
    rows = history.query(
        "select job_id, outcome, stopping_s, lost_s, waited_s, restart_s, gpus_before, gpus_after,"
        " is_migration from preemptions order by job_id"
    )
    assert rows == [
        ("a", "preempted", 4, 30, 46, 9, 1, 1, True),
        ("b", "resized", 2, 0, 1, 5, 2, 4, False),
    ]


def test_a_job_that_never_continued_is_listed(history: History) -> None:
    history.job("c", 0)
    start(history, "c", 1, 0, "n1")
    interrupt(history, "c", 1, requested=9, released=10, kind="preempted", lost=0)
    assert history.query("select waited_s, restart_s from preemptions where job_id = 'c'") == [(None, None)]


def test_costs_for_the_simulator_are_medians(history: History, tmp_path: Path) -> None:
    history.query("select 1")
    assert load_costs(tmp_path / "warehouse.duckdb") == Costs(
        checkpoint_s=3, restart_s=5, migration_s=4, stopped=2
    )


def test_a_simulation_uses_recorded_costs_where_none_are_given(history: History, tmp_path: Path) -> None:
    history.query("select 1")
    study = SimulationOptions(
        "1x2", workload="poisson:jobs=5", costs=tmp_path / "warehouse.duckdb", restart_seconds=60
    )
    conditions = read_inputs(study).conditions
    assert (conditions.checkpoint_s, conditions.restart_s, conditions.migration_s) == (3, 60, 4)


def test_costs_are_unknown_if_no_job_was_stopped(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.job("a", 0)
    history.query("select 1")
    with pytest.raises(TraceError, match="no job was ever stopped"):
        load_costs(tmp_path / "warehouse.duckdb")


def test_the_named_queries_about_preemption(history: History, tmp_path: Path) -> None:
    history.query("select 1")
    result = run_query(tmp_path / "warehouse.duckdb", "preemptions")
    newest = dict(zip(result.columns, result.rows[0], strict=True))
    assert (newest["name"], newest["freed_for"], newest["outcome"]) == ("a", "boss", "preempted")
    assert run_query(tmp_path / "warehouse.duckdb", "preemption_costs").rows
    assert run_query(tmp_path / "warehouse.duckdb", "checkpoints").rows
