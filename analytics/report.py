"""The report of a pool: every figure, some numbers and tables, read from its warehouse and rendered as one file."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gpu_flows.analytics.figures.catalogue import CHARTS
from gpu_flows.analytics.figures.chart import Drawn, Scope, list_views, read_chart
from gpu_flows.analytics.figures.gpu_hours import GPU_HOURS
from gpu_flows.analytics.figures.theme import format_duration
from gpu_flows.analytics.pages import Number, Table, render_page
from gpu_flows.analytics.query_runner import run_query

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
    parts: list[tuple[str, Callable[[], Any]]] = [("numbers", lambda: _read_numbers(scope))]
    parts += [(chart.title, lambda chart=chart: read_chart(chart, scope, views)) for chart in CHARTS]  # type: ignore[misc]
    parts += [
        (title, lambda each=each, title=title: _read_table(scope, title, *each)) for title, *each in _TABLES
    ]  # type: ignore[misc]
    found: list[Any] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (title, _), result in zip(parts, pool.map(lambda part: part[1](), parts), strict=True):
            found.append(result)
            progress(title, len(found), len(parts))
    (numbers, measures), figures, tables = found[0], found[1 : 1 + len(CHARTS)], found[1 + len(CHARTS) :]
    return Report(scope, numbers, figures, tables, measures)


def render_report(report: Report, generated: datetime, version: str) -> str:
    """Return the report as one HTML file that needs no network."""
    scope, missing = report.scope, [drawn for drawn in report.figures if not drawn.drawing]
    since, until = scope.since.astimezone(), scope.until.astimezone()
    span = f"{since:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S} {until:%Z}"
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


def _read_numbers(scope: Scope) -> tuple[list[Number], dict[str, Any]]:
    found = scope.ask(_NUMBERS)
    read: dict[str, Any] = dict(zip(found.columns, found.rows[0], strict=True))
    jobs = [
        Number("Jobs submitted", f"{read['submitted']:,}"),
        Number(
            "Completed",
            f"{read['completed']:,}",
            _share(read["completed"], read["ended"], "of those that ended"),
        ),
        Number("Failed", f"{read['failed']:,}", _share(read["failed"], read["ended"], "of those that ended")),
        Number("Waiting", f"{read['waiting']:,}", "at the end"),
        Number("Running", f"{read['running']:,}", "at the end"),
        Number("Times stopped for others", f"{read['stops']:,}"),
    ]
    times = [
        Number(
            "Mean turnaround",
            _duration(read["avg_turnaround_s"]),
            f"p90 {_duration(read['p90_turnaround_s'])}",
        ),
        Number("Mean wait", _duration(read["avg_queueing_s"]), f"p90 {_duration(read['p90_queueing_s'])}"),
    ]
    use = [
        Number(
            "GPU-hours held",
            f"{read['gpu_hours']:,.4g}",
            _share(read["held_s"], read["available_s"], "of all"),
        ),
        Number(
            "Devices", f"{read['devices']:,}", f"on {read['nodes']:,} node{'s' if read['nodes'] != 1 else ''}"
        ),
    ]
    return [*jobs, *times, *use], read


def _read_table(scope: Scope, title: str, meaning: str, sql: str, when_empty: str) -> Table:
    found = scope.ask(sql)
    return Table(title, found.columns, found.rows, when_empty, meaning)


def _share(part: float | None, whole: float | None, of_what: str) -> str:
    return f"{(part or 0) / whole:.0%} {of_what}" if whole else ""


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else format_duration(round(seconds, 1))


_CLOCKS = "select pool, first_fact, last_fact from pool_clock where pool is not null order by pool"

# A job counts as ended in the time in which it ended, and as submitted in that in which it was.
_NUMBERS = f"""
-- How did the pool do?
with ended as (
    select * from job_history where pool = $pool and ended > $since and ended <= $until
),
available as (
    select sum(shared_seconds(since, until, $since, $until)) as available_s
    from device_available where pool = $pool
),
busy as (select sum(shared_seconds(since, until, $since, $until)) as held_s from device_busy where pool = $pool)
select
    (select count(*) from jobs where pool = $pool and submitted > $since and submitted <= $until) as submitted,
    (select count(*) from ended) as ended,
    (select count(*) from ended where outcome = 'completed') as completed,
    (select count(*) from ended where outcome in ('failed', 'crashed', 'refused')) as failed,
    (select count(*) from job_history where pool = $pool and state = 'waiting') as waiting,
    (select count(*) from job_history where pool = $pool and state = 'running') as running,
    (select count(*) from preemptions where pool = $pool and requested > $since and requested <= $until) as stops,
    (select avg(turnaround_s) from ended where attempts > 0) as avg_turnaround_s,
    (select quantile_cont(turnaround_s, 0.9) from ended where attempts > 0) as p90_turnaround_s,
    (select avg(queueing_s) from ended where attempts > 0) as avg_queueing_s,
    (select quantile_cont(queueing_s, 0.9) from ended where attempts > 0) as p90_queueing_s,
    coalesce((select sum(gpu_hours) from ({GPU_HOURS})), 0) as gpu_hours,
    held_s,
    available_s,
    (select count(*) from devices where pool = $pool) as devices,
    (select count(distinct node) from devices where pool = $pool) as nodes
from available, busy
"""

_POLICIES = """
-- How do the policies compare?
select policy, count(*) as jobs, count(*) filter (where outcome = 'completed') as completed,
    sum(attempts) - count(*) as restarts, avg(turnaround_s) as avg_turnaround_s,
    quantile_cont(turnaround_s, 0.5) as p50_turnaround_s, quantile_cont(turnaround_s, 0.9) as p90_turnaround_s,
    avg(queueing_s) as avg_queueing_s, sum(gpus * run_s) / 3600 as gpu_hours
from job_history
where pool = $pool and ended > $since and ended <= $until and attempts > 0
group by policy
order by avg_turnaround_s
"""
_USERS = """
-- Who used the devices, and who waited?
select user_name, count(*) as jobs, count(*) filter (where outcome = 'completed') as completed,
    count(*) filter (where state = 'waiting') as waiting, count(*) filter (where state = 'running') as running,
    sum(gpus * run_s) / 3600 as gpu_hours, avg(turnaround_s) filter (where attempts > 0) as avg_turnaround_s,
    avg(queueing_s) filter (where attempts > 0) as avg_queueing_s
from job_history
where pool = $pool and submitted <= $until and coalesce(ended, $until) > $since
group by user_name
order by gpu_hours desc, user_name
limit 50
"""
_FAILURES = """
-- What failed lately?
select time, name, user_name, attempt, nodes, outcome, exit_code, detail
from failures
where pool = $pool and time > $since and time <= $until
order by time desc
limit 20
"""
_WAITS = """
-- Which jobs waited longest?
select name, user_name, gpus, state, submitted, waited_s, policy
from job_history
where pool = $pool and submitted <= $until and coalesce(ended, $until) > $since
order by waited_s desc
limit 20
"""
_TABLES = [
    (
        "Policies compared",
        "Jobs that ended in this time, by the policy that started their last attempt.",
        _POLICIES,
        "No job that ran has ended in this time.",
    ),
    ("Users", "Jobs that waited, ran or ended in this time.", _USERS, "No job was submitted in this time."),
    ("Failures", "The latest first.", _FAILURES, "Nothing failed in this time."),
    ("Longest waits", "Also those of jobs that still wait.", _WAITS, "No job was submitted in this time."),
]
