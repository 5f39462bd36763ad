"""The views on predictions: which ones are compared with what."""

from __future__ import annotations

from pathlib import Path

import pytest
from analytics_history import History, T

from gpu_flows.analytics.facts import FeaturesSeen, MemoryPeak, Predicted, ProgressReported


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A job that ran out of memory at 900 MiB, got a raised bound, and completed with 1,500 MiB."""
    history = History(tmp_path)
    history.device("d0")
    history.job("a", 0)
    history.record(FeaturesSeen("a", "", "{}", '["memory_mb"]'))
    history.record(Predicted("a", T, "memory_mb", "GTX", 700, 800, "features", "v1"))
    history.record(Predicted("a", T + 1, "memory_mb", "GTX", 750, 900, "features", "v2"))
    history.start("a", 1, "d0")
    history.record(MemoryPeak("a", 1, "d0", 900, "nvml"))
    history.stop("a", 5, outcome="out_of_memory")
    history.record(Predicted("a", T + 6, "memory_mb", "GTX", 1800, 1800, "raised"))
    history.start("a", 6, "d0", attempt=2)
    history.record(MemoryPeak("a", 2, "d0", 1500, "nvml"))
    history.record(Predicted("a", T, "seconds", "", 15, 30, "history"))
    history.stop("a", 16, attempt=2)
    history.end("a", 16)
    return history


def test_the_last_prediction_of_each_kind_is_compared_with_the_completed_attempt(history: History) -> None:
    found = history.query(
        "select how, version, kind, value, measured, error, broken from prediction_errors"
        " where quantity = 'memory_mb' order by how"
    )
    assert found == [
        ("features", "v2", "f", 750, 1500, -0.5, True),
        ("raised", "", "f", 1800, 1500, pytest.approx(0.2), False),
    ]


def test_time_is_compared_with_the_time_on_devices_over_all_attempts(history: History) -> None:
    found = history.query("select measured, error, broken from prediction_errors where quantity = 'seconds'")
    assert found == [(14, pytest.approx(1 / 14), False)]


def test_a_time_predicted_while_the_job_ran_counts_only_from_its_progress(history: History) -> None:
    history.run("b", 0, 10, 110, "d0")
    history.record(Predicted("b", T + 5, "seconds", "", 80, 90, "history"))
    history.record(Predicted("b", T + 95, "seconds", "", 100, 100, "history"))
    for at, fraction, value in ((20, 0.1, 400), (70, 0.55, 120), (90, 0.8, 105), (110, 1.0, 100)):
        history.record(ProgressReported("b", 1, T + at, fraction, 1.0, "steps"))
        history.record(Predicted("b", T + at, "seconds", "", value, value, "progress"))
    history.run("c", 200, 210, 310, "d0")
    for at, fraction, value in ((215, 0.05, 900), (225, 0.15, 130), (310, 1.0, 100)):
        history.record(ProgressReported("c", 1, T + at, fraction, 1.0, "steps"))
        history.record(Predicted("c", T + at, "seconds", "", value, value, "progress"))
    found = history.query(
        "select job_id, how, value from prediction_errors where job_id in ('b', 'c') order by all"
    )
    assert found == [("b", "history", 80), ("b", "progress", 120), ("c", "progress", 130)]


def test_quality_counts_errors_and_held_bounds(history: History) -> None:
    found = history.query(
        "select how, version, jobs, median_error_percent, worst_under_percent, covered_percent"
        " from prediction_quality where quantity = 'memory_mb' order by how"
    )
    assert found == [
        ("features", "v2", 1, 50, 50, 0),
        ("raised", "", 1, pytest.approx(20), 0, 100),
    ]


def test_jobs_without_a_measurement_or_an_end_are_left_out(history: History) -> None:
    history.job("waiting", 0)
    history.record(Predicted("waiting", T, "memory_mb", "", 1, 1, "features"))
    history.run("unmeasured", 0, 1, 2, "d0")
    history.record(Predicted("unmeasured", T, "memory_mb", "", 1, 1, "features"))
    assert history.query("select distinct job_id from prediction_errors") == [("a",)]
