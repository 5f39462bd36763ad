"""How good the predictions of completed jobs were: error, and how often the upper bound held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpu_flows.analytics.query_runner import run_query

ALL_KINDS = "all"
MEMORY, TIME = "memory_mb", "seconds"  # quantities


class Point(NamedTuple):
    """What was predicted, and what was measured."""

    value: float
    upper: float
    measured: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prediction beside what was measured."""

    quantity: str
    how: str
    kind: str
    point: Point


@dataclass(frozen=True, slots=True)
class Quality:
    """How good the predictions of a group were. Shares are from 0 to 1."""

    quantity: str
    how: str
    kind: str
    jobs: int
    median_error: float
    p90_error: float
    worst_under: float
    covered: float  # jobs that did not need more than their upper bound


def read_comparisons(database: Path) -> list[Comparison]:
    """Return the predictions of completed jobs, oldest first. Raises QueryError."""
    found = run_query(database, _COMPARISONS)
    return [Comparison(quantity, how, kind, Point(*point)) for quantity, how, kind, *point in found.rows]


def evaluate(comparisons: Sequence[Comparison]) -> list[Quality]:
    """Return the quality for each quantity and way of predicting: of all kinds of jobs, then of each kind."""
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for each in comparisons:
        for kind in (ALL_KINDS, each.kind):
            groups.setdefault((each.quantity, each.how, kind), []).append(each.point)
    order = sorted(groups, key=lambda group: (group[0], group[1], group[2] != ALL_KINDS, -len(groups[group])))
    return [_judge(*group, groups[group]) for group in order]


def _judge(quantity: str, how: str, kind: str, points: Sequence[Point]) -> Quality:
    value, upper, measured = np.array(points, dtype=float).T
    error = value / measured - 1
    return Quality(
        quantity,
        how,
        kind,
        len(points),
        float(np.median(np.abs(error))),
        float(np.quantile(np.abs(error), 0.9)),
        float(max(0.0, -error.min())),
        float(np.mean(measured <= upper)),
    )


def render_calibration(comparisons: Iterable[Comparison]) -> str:
    """Return a page with a figure of the predictions of memory and one of those of time."""
    from gpu_flows.analytics.figures import calibration
    from gpu_flows.analytics.pages import render_figures

    points: dict[str, dict[str, list[Point]]] = {MEMORY: {}, TIME: {}}
    for each in comparisons:
        points[each.quantity].setdefault(each.how, []).append(each.point)
    figures = [
        calibration.calibration_of("memory", "Memory per device", points[MEMORY], calibration.MEMORY),
        calibration.calibration_of("time", "Time on devices", points[TIME], calibration.TIME),
    ]
    return render_figures("Predictions", figures)


_COMPARISONS = """
select quantity, how, kind, value, upper, measured
from prediction_errors
where quantity in ('memory_mb', 'seconds')
order by time, job_id
"""
