"""Preemptions in SQL: who left, what it cost, how the job went on, and what the simulator learns of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from analytics_history import History, T

from gpu_flows.analytics.facts import Allocated, AttemptInterrupted, AttemptStarted, SavedWork
from gpu_flows.analytics.recorded_trace import Costs, load_costs
from gpu_flows.cli.inputs import read
from gpu_flows.cli.study import Study
from gpu_flows.schedulers.traces import TraceError


def start(history: History, job: str, attempt: int, at: float, node: str, gpus: int = 1) -> None:
    history.tell(
        AttemptStarted(job, attempt, "priority", "process", json.dumps([node]), T + at, T + at),
        *(Allocated(job, attempt, f"{node}-{n}", node, 0, T + at) for n in range(gpus)),
    )


def leave(
    history: History, job: str, attempt: int, asked: float, gone: float, kind: str, lost: float
) -> None:
    history.stop(job, gone, attempt, kind)
    history.tell(
        AttemptInterrupted(job, attempt, T + asked, T + gone, kind, "priority", '["boss"]'),
        saved(job, attempt, lost=lost),
    )


def saved(job: str, attempt: int, restored: float | None = None, lost: float = 0.0) -> SavedWork:
    when = None if restored is None else T + restored
    took = None if restored is None else 0.5
    return SavedWork(job, attempt, 2, 0.4, 1000, T, 7, when, took, None, lost)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """a is preempted and migrates; b is resized on its node, and then moved there."""
    told = History(tmp_path)
    for job in ("a", "b", "boss"):
        told.job(job, 0)
    start(told, "a", 1, 0, "n1")
    leave(told, "a", 1, asked=100, gone=104, kind="preempted", lost=30)
    start(told, "a", 2, 150, "n2")
    told.tell(saved("a", 2, restored=159))
    start(told, "b", 1, 0, "n1", gpus=2)
    leave(told, "b", 1, asked=50, gone=52, kind="resized", lost=0)
    start(told, "b", 2, 53, "n1", gpus=4)
    told.tell(saved("b", 2, restored=58))
    return told


def test_how_jobs_left_and_went_on(history: History) -> None:
    rows = history.ask(
        "select job_id, outcome, stopping_s, lost_s, waited_s, restart_s, gpus_before, gpus_after,"
        " is_migration from preemptions order by job_id"
    )
    assert rows == [
        ("a", "preempted", 4, 30, 46, 9, 1, 1, True),
        ("b", "resized", 2, 0, 1, 5, 2, 4, False),
    ]


def test_one_that_never_went_on_is_there_too(history: History) -> None:
    history.job("c", 0)
    start(history, "c", 1, 0, "n1")
    leave(history, "c", 1, asked=9, gone=10, kind="preempted", lost=0)
    assert history.ask("select waited_s, restart_s from preemptions where job_id = 'c'") == [(None, None)]


def test_what_the_simulator_learns(history: History, tmp_path: Path) -> None:
    history.ask("select 1")
    assert load_costs(tmp_path / "warehouse.duckdb") == Costs(
        checkpoint_s=3, restart_s=5, migration_s=4, stopped=2
    )


def test_a_simulation_takes_them_where_none_are_given(history: History, tmp_path: Path) -> None:
    history.ask("select 1")
    asked = Study("1x2", workload="poisson:jobs=5", costs=tmp_path / "warehouse.duckdb", restart_seconds=60)
    world = read(asked).world
    assert (world.checkpoint_s, world.restart_s, world.migration_s) == (3, 60, 4)


def test_a_pool_in_which_nobody_was_stopped_teaches_nothing(tmp_path: Path) -> None:
    told = History(tmp_path)
    told.job("a", 0)
    told.ask("select 1")
    with pytest.raises(TraceError, match="no job was ever stopped"):
        load_costs(tmp_path / "warehouse.duckdb")


def test_the_questions_are_answered(history: History, tmp_path: Path) -> None:
    from gpu_flows.analytics.query_runner import run_query

    history.ask("select 1")
    asked: Any = run_query(tmp_path / "warehouse.duckdb", "preemptions")
    newest = dict(zip(asked.columns, asked.rows[0], strict=True))
    assert (newest["name"], newest["freed_for"], newest["outcome"]) == ("a", "boss", "preempted")
    assert run_query(tmp_path / "warehouse.duckdb", "preemption_costs").rows
    assert run_query(tmp_path / "warehouse.duckdb", "checkpoints").rows
