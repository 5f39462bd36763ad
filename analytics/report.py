"""The report of a pool: figures, numbers and tables, read from its warehouse and rendered as one file."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from gpu_flows.analytics.figures.catalogue import CHARTS
from gpu_flows.analytics.figures.chart import Drawn, Scope, list_views, read_chart
from gpu_flows.analytics.figures.theme import format_duration
from gpu_flows.analytics.figures.time_axis import TimeAxis
from gpu_flows.analytics.pages import Number, Table, render_page
from gpu_flows.analytics.query_runner import run_query
from gpu_flows.analytics.report_tables import TABLES, read_numbers, read_table

WIDE = {"gantt", "utilization"}  # figures that take the whole width
AT_ONCE = 2  # queries, each in a process of its own

Progress = Callable[[str, int, int], None]  # what was read last, how many parts are read, of how many


class NoHistory(Exception):
    """There is nothing to report. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that the report shows."""

    scope: Scope
    numbers: list[Number]
    figures: list[Drawn]
    tables: list[Table]
    measures: dict[str, Any]  # the numbers as they were read, for programs


def find_scope(database: Path, pool: str, window_s: float) -> Scope:
    """Return the last `window_s` seconds of a pool's history, which end with its last fact: a pool that was
    shut down, or simulated, can be reported too. Raises NoHistory, QueryError."""
    clocks = {name: times for name, *times in run_query(database, _CLOCKS).rows}
    if not clocks:
        raise NoHistory(
            f"Warehouse {database} holds no history yet. It begins with the first job of a worker."
        )
    if pool not in clocks:
        there = ", ".join(clocks)
        raise NoHistory(f"Warehouse {database} holds no history of pool {pool!r}; --pool takes: {there}.")
    first, last = clocks[pool]
    try:
        since = max(first, last - timedelta(seconds=window_s))
    except OverflowError:
        since = first
    return Scope(database, pool, since - timedelta(microseconds=1), last)  # what happened first counts too


def read_report(scope: Scope, progress: Progress = lambda *_: None) -> Report:
    """Ask the warehouse for everything. Raises QueryError."""
    views = list_views(scope)
    parts: dict[str, Callable[[], Any]] = {"Numbers": partial(read_numbers, scope)}
    parts |= {chart.title: partial(read_chart, chart, scope, views) for chart in CHARTS}
    parts |= {title: partial(read_table, scope, title, *rest) for title, *rest in TABLES}
    found: list[Any] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for title, result in zip(parts, pool.map(lambda read: read(), parts.values()), strict=True):
            found.append(result)
            progress(title, len(found), len(parts))
    (numbers, measures), figures, tables = found[0], found[1 : 1 + len(CHARTS)], found[1 + len(CHARTS) :]
    return Report(scope, numbers, figures, tables, measures)


def render_report(report: Report, generated: datetime, version: str) -> str:
    """Return the report as one HTML file that needs no network."""
    scope, missing = report.scope, [drawn for drawn in report.figures if not drawn.drawing]
    since, until = scope.since.astimezone(), scope.until.astimezone()
    axis = TimeAxis(since.timestamp(), until.timestamp())
    span = (
        f"{axis.label(axis.first)} to {axis.label(axis.last)} {until:%Z}" if axis.has_dates else "Simulated"
    )
    values = {
        "title": f"Report of pool {scope.pool}",
        "span": f"{span} ({format_duration((until - since).total_seconds())})",
        "numbers": report.numbers,
        "figures": [drawn for drawn in report.figures if drawn.drawing],
        "wide": WIDE,
        "tables": report.tables,
        "missing": missing,
        "origin": f"Generated {generated:%Y-%m-%d %H:%M:%S %Z} by gpu-flows {version} from {scope.database}.",
    }
    return render_page("report.html", values)


_CLOCKS = "select pool, first_fact, last_fact from pool_clock where pool is not null order by pool"
