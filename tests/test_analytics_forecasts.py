"""How good forecasts were, of a history with known answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from analytics_history import History, T

from gpu_flows.analytics.facts import AttemptStarted, Forecast, Predicted
from gpu_flows.analytics.query_runner import run_query
from gpu_flows.forecasting.pool_history import UNKNOWN_SPREAD, read_history
from gpu_flows.schedulers.prediction.estimate import Estimate


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Job a waits from 0 to 100 and runs until 1000; b starts at 50 and is cancelled at 60."""
    history = History(tmp_path)
    history.device("d0")
    history.run("a", 0, 100, 1000, "d0")
    history.job("b", 0)
    history.start("b", 50, "d0")
    history.stop("b", 60, outcome="cancelled")
    history.end("b", 60, outcome="cancelled")
    return history


def tell(history: History, job_id: str, made: float, *times: float) -> None:
    start_p50, start_p90, end_p50, end_p90 = (T + each for each in times)
    history.record(Forecast(T + made, "pool", job_id, start_p50, start_p90, end_p50, end_p90, "srtf"))


def test_forecasts_are_compared_with_what_happened_after_them(history: History) -> None:
    tell(history, "a", 0, 80, 90, 700, 1100)
    tell(history, "a", 500, 100, 100, 1010, 1020)  # it runs, so nothing is forecast of its start
    tell(history, "b", 49.9, 49.8, 49.8, 400, 500)  # it is being launched, so its start is no forecast
    tell(history, "b", 10, 40, 70, 400, 500)  # it did not complete, so its end says nothing
    found = history.query(
        "select job_id, epoch(made)::integer, quantity, horizon_s, p50_error_s, p90_error_s, covered"
        " from eta_errors order by job_id, made, quantity"
    )
    at = int(T)
    assert found == [
        ("a", at, "end", 700, 300, -100, True),
        ("a", at, "start", 80, 20, 10, False),
        ("a", at + 500, "end", 510, -10, -20, True),
        ("b", at + 10, "start", 30, 10, -20, True),
    ]


def test_a_job_counts_once_at_its_first_forecast_and_once_at_each_horizon(history: History) -> None:
    tell(history, "a", 0, 80, 90, 700, 900)
    tell(history, "a", 10, 80, 120, 710, 1000)  # the same horizons again
    tell(history, "a", 50, 90, 120, 800, 1000)  # the start is less than a minute ahead
    tell(history, "a", 500, 100, 100, 1000, 1000)  # the end is less than ten minutes ahead
    tell(history, "b", 0, 60, 70, 400, 500)
    found = history.query(
        "select quantity, horizon, jobs, covered_percent, mean_abs_error_s, error_percent"
        " from eta_quality order by quantity, horizon"
    )
    assert found == [
        ("end", "1 to 10 min", 1, 100, 0, 0),
        ("end", "10 to 60 min", 1, 0, 300, pytest.approx(300 / 7)),
        ("end", "first", 1, 0, 300, pytest.approx(300 / 7)),
        ("start", "1 to 10 min", 2, 50, 15, pytest.approx(1500 / 70)),
        ("start", "first", 2, 50, 15, pytest.approx(1500 / 70)),
        ("start", "under 1 min", 1, 100, 10, 25),
    ]


def test_forecasts_that_are_missed_count_before_the_job_starts(history: History) -> None:
    """c has waited since 10 for a start that was forecast until 90; d still has time."""
    for job_id, p90 in (("c", 90), ("d", 2000)):
        history.job(job_id, 10)
        tell(history, job_id, 10, 80, p90, 3000, 4000)
    tell(history, "b", 0, 40, 70, 50, 55)  # it ran longer than this, until it was cancelled
    found = history.query(
        "select job_id, quantity, happened, p50_error_s, covered from eta_errors"
        " where happened is null order by job_id"
    )
    assert found == [("b", "end", None, None, False), ("c", "start", None, None, False)]
    found = history.query(
        "select jobs, covered_percent, mean_abs_error_s, error_percent from eta_quality"
        " where quantity = 'start' and horizon = 'first'"
    )
    assert found == [(2, 50, 10, 25)]


def test_the_named_query_shows_the_first_forecasts_first(history: History, tmp_path: Path) -> None:
    tell(history, "a", 0, 80, 90, 700, 900)
    history.query("select 1")
    found = run_query(tmp_path / "warehouse.duckdb", "eta_quality", {"pool": "pool"})
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert [(row["quantity"], row["horizon"]) for row in rows] == [
        ("end", "first"),
        ("end", "10 to 60 min"),
        ("start", "first"),
        ("start", "1 to 10 min"),
    ]
    assert not run_query(tmp_path / "warehouse.duckdb", "eta_quality", {"pool": "other"}).rows


def test_a_pool_that_has_done_nothing_teaches_nothing(history: History, tmp_path: Path) -> None:
    history.query("select 1")
    found = read_history(tmp_path / "warehouse.duckdb", "other")
    assert (found.costs.launch_s, found.typical) == (0.0, None)
    assert found.correct(Estimate(100, 100, "stated")) == Estimate(100, 100 * UNKNOWN_SPREAD, "stated")
    assert found.correct(Estimate(100, 150, "history")) == Estimate(100, 150, "history")
    assert found.correct(None) is None


def test_durations_are_corrected_by_what_jobs_really_took(history: History, tmp_path: Path) -> None:
    for number in range(20):
        name, at = f"j{number}", 2000.0 + 100 * number
        history.job(name, at)
        history.record(Predicted(name, T + at, "seconds", "", 100, 100, "stated"))
        history.record(AttemptStarted(name, 1, "fifo", "process", '["n0"]', T + at + 1, T + at + 3))
        history.stop(name, at + 3 + 50)  # half of what was stated
        history.end(name, at + 3 + 50)
    history.query("select 1")
    found = read_history(tmp_path / "warehouse.duckdb", "pool")
    assert (found.costs.launch_s, found.costs.launch_upper_s) == (2, 2)
    assert found.typical == Estimate(50, 50, "history")
    corrected = found.correct(Estimate(100, 100, "stated"))
    assert corrected
    assert 50 < corrected.value < 60, "twenty jobs show it, and five are assumed"
    assert corrected.value <= corrected.upper < 65
    assert found.correct(Estimate(100, 150, "progress")) == Estimate(100, 150, "progress")
