"""Jobs that are cancelled while they wait do not wait in the history, even if no worker saw it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from analytics_history import History, T
from fake_prefect import POOL, FakePrefect
from prefect.states import Cancelled, Completed, Failed, Running, Suspended

from gpu_flows.analytics.facts import Fact, JobEnded
from gpu_flows.analytics.query_runner import run_query
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.worker.missed_ends import record_missed_ends

LOG = logging.getLogger(__name__)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


@pytest.fixture
def prefect() -> FakePrefect:
    return FakePrefect()


def compare_with_server(history: History, prefect: FakePrefect, folder: Path, *executing: str) -> None:
    history.query("select 1")  # records what the test has written
    runs = DueJobs(prefect.client, prefect.pool, set()).runs
    database = folder / "warehouse.duckdb"
    asyncio.run(
        record_missed_ends(database, POOL, runs, lambda job_id: job_id in executing, history.record, LOG)
    )


def test_ends_that_no_worker_saw_are_recorded(history: History, prefect: FakePrefect, tmp_path: Path) -> None:
    ended = {
        "cancelled": Cancelled(message="not needed"),
        "refused": Failed(name="Refused", message="too many GPUs"),
        "completed": Completed(),
    }
    ids = {}
    for outcome, state in ended.items():
        ids[outcome] = str(prefect.add_run().id)
        prefect.set_state(UUID(ids[outcome]), state)
    waiting, launched, deleted = str(prefect.add_run().id), str(prefect.add_run().id), str(uuid4())
    prefect.set_state(UUID(launched), Running())
    for job_id in (*ids.values(), waiting, launched, deleted):
        history.job(job_id, 0, pool=POOL)
    compare_with_server(history, prefect, tmp_path)
    found = dict(history.query("select job_id, outcome from job_ends"))
    assert found == {**{id: outcome for outcome, id in ids.items()}, deleted: "cancelled"}
    assert set(history.query("select job_id from waiting_now")) == {(waiting,), (launched,)}


def test_job_that_was_cancelled_while_suspended_has_ended(
    history: History, prefect: FakePrefect, tmp_path: Path
) -> None:
    runs = [prefect.add_run(), prefect.add_run()]
    for run, state in zip(runs, (Cancelled(), Suspended()), strict=True):
        prefect.set_state(run.id, state)
        history.job(str(run.id), 0, pool=POOL)
        history.start(str(run.id), 10, "g0")
        history.stop(str(run.id), 20, outcome="suspended")
    compare_with_server(history, prefect, tmp_path)
    states = dict(history.query("select job_id, coalesce(outcome, state) from job_history"))
    assert states == {str(runs[0].id): "cancelled", str(runs[1].id): "suspended"}


def test_job_that_runs_has_not_ended(history: History, prefect: FakePrefect, tmp_path: Path) -> None:
    run = prefect.add_run()
    prefect.set_state(run.id, Cancelled())  # its process has not ended yet; the worker reports it then
    history.job(str(run.id), 0, pool=POOL)
    compare_with_server(history, prefect, tmp_path, str(run.id))
    assert history.query("select * from job_ends") == []


def test_jobs_of_other_pools_are_not_touched(history: History, prefect: FakePrefect, tmp_path: Path) -> None:
    history.job(str(uuid4()), 0, pool="other")
    compare_with_server(history, prefect, tmp_path)
    assert history.query("select * from job_ends") == []


def test_averages_of_a_user_are_those_of_jobs_that_ran(history: History, tmp_path: Path) -> None:
    facts: list[Fact] = [JobEnded("refused", T, "refused", "too many GPUs")]
    history.run("a", 0, 10, 30, "g0")
    history.job("refused", 0)
    history.record(*facts)
    history.query("select 1")
    found = run_query(tmp_path / "warehouse.duckdb", "who")
    row = dict(zip(found.columns, found.rows[0], strict=True))
    assert (row["jobs"], row["waiting"]) == (2, 0)
    assert (row["avg_turnaround_s"], row["avg_queueing_s"]) == (30.0, 10.0)
