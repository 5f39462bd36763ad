"""The remaining time of running jobs: warm-up, resumed jobs, restarts, and the prediction before the run."""

from __future__ import annotations

import pytest

from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.prediction.remaining_time import RemainingTime


def follow(remaining: RemainingTime, *points: tuple[float, float]) -> float:
    """Add points of time and fraction, and return the remaining time at the last one."""
    for time, fraction in points:
        remaining.add(time, fraction)
    found = remaining.estimate(points[-1][0])
    assert found is not None
    return found.value


def steady(
    start: float, end: float, first: float = 0.0, last: float = 1.0, count: int = 50
) -> list[tuple[float, float]]:
    return [
        (start + (end - start) * n / count, first + (last - first) * n / count) for n in range(1, count + 1)
    ]


def test_nothing_is_known_before_the_first_point() -> None:
    assert RemainingTime(0.0).estimate(5.0) is None


def test_a_steady_job() -> None:
    assert follow(RemainingTime(0.0), *steady(0, 100, 0, 0.25)) == pytest.approx(300, rel=0.05)


def test_a_slow_start_does_not_count() -> None:
    remaining = RemainingTime(0.0)
    assert follow(remaining, (500, 0.01), *steady(500, 600, 0.01, 0.5)) == pytest.approx(102, rel=0.1)


def test_a_job_that_became_slower_is_noticed() -> None:
    remaining = RemainingTime(0.0)
    found = follow(remaining, *steady(0, 100, 0, 0.5), *steady(100, 200, 0.5, 0.75))
    assert 50 < found <= 110, "between the rate so far and the recent one, which is 100"
    wide = remaining.estimate(200)
    even = RemainingTime(0.0)
    follow(even, *steady(0, 200, 0, 0.75))
    narrow = even.estimate(200)
    assert wide is not None
    assert narrow is not None
    assert wide.upper / wide.value > narrow.upper / narrow.value


def test_a_resumed_job_is_judged_by_what_it_did_since() -> None:
    remaining = RemainingTime(1000.0, resumed=True)
    remaining.add(1010, 0.6)
    assert remaining.estimate(1010) is None, "one point shows no rate"
    assert follow(remaining, *steady(1010, 1110, 0.6, 0.8)) == pytest.approx(100, rel=0.05)


def test_work_that_begins_anew_is_measured_anew() -> None:
    remaining = RemainingTime(0.0)
    follow(remaining, *steady(0, 100, 0, 0.9))
    assert follow(remaining, (150, 0.0), *steady(150, 250, 0, 0.5)) == pytest.approx(100, rel=0.05)


def test_time_passes_between_two_points_but_a_pause_does_not_end_the_job() -> None:
    remaining = RemainingTime(0.0)
    follow(remaining, *[(10.0 * n, n / 20) for n in range(1, 11)])
    soon, later = remaining.estimate(105), remaining.estimate(10_000)
    assert soon is not None
    assert later is not None
    assert soon.value == pytest.approx(95, rel=0.05)
    assert 70 < later.value < 100


def test_the_prediction_before_the_run_counts_less_the_more_was_seen() -> None:
    prior = Estimate(1000.0, 2000.0, "history")
    values = [follow(RemainingTime(0.0, prior), *steady(0, 100 * f, 0, f)) for f in (0.02, 0.1, 0.5)]
    by_progress = [100 * (1 - f) for f in (0.02, 0.1, 0.5)]
    excess = [value / alone for value, alone in zip(values, by_progress, strict=True)]
    assert min(excess[:2]) > excess[2]
    assert excess[0] > 1.1
    assert excess[2] == pytest.approx(1, abs=0.1)


def test_before_any_progress_the_prediction_answers() -> None:
    found = RemainingTime(0.0, Estimate(100.0, 200.0, "history", "3 jobs")).estimate(40.0)
    assert found is not None
    assert found.value == pytest.approx(60)
    assert found.how == "history"


def test_a_single_early_report_is_not_extrapolated() -> None:
    history, unknown = RemainingTime(0.0, Estimate(26.0, 40.0, "history")), RemainingTime(0.0)
    for remaining in (history, unknown):
        remaining.add(8.0, 0.01)  # nearly all of it was the start of the program
    found = history.estimate(8.0)
    assert found is not None
    assert (found.value, found.how) == (pytest.approx(18), "history")
    assert unknown.estimate(8.0) is None
    assert follow(unknown, (10.0, 0.11)) == pytest.approx(18, rel=0.05), "the second report shows the rate"


def test_slow_work_is_noticed_long_before_much_of_it_is_done() -> None:
    remaining = RemainingTime(0.0, Estimate(100.0, 200.0, "stated"))
    assert follow(remaining, *[(10.0 * n, n / 1000) for n in range(1, 6)]) > 300


def test_a_prediction_that_the_job_outlived_says_nothing() -> None:
    assert RemainingTime(0.0, Estimate(100.0, 200.0, "history")).estimate(250.0) is None


def test_many_points_are_thinned_out() -> None:
    remaining = RemainingTime(0.0)
    assert follow(remaining, *steady(0, 1000, 0, 0.5, count=20_000)) == pytest.approx(1000, rel=0.05)
    assert len(remaining._points) < 1000
