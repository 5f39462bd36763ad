"""Writes the tables and the main views of a warehouse to files, one Parquet or CSV file each.

A period (`since`) chooses jobs: those that had not ended before it, with everything that is known of them.
Rows about no job are chosen by their own time. Devices, nodes, experiments and swaps are written as a whole.

Each table is read by a query of its own, between the writes of a worker, so one table may have facts that are
later than those of another one. Times are in UTC in both formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from gpu_flows.analytics.facts import FACTS
from gpu_flows.analytics.query_runner import run_query

TABLES = [*(fact.table for fact in FACTS), "sample_minutes"]
VIEWS = [
    "job_history",
    "attempt_history",
    "failures",
    "preemptions",
    "prediction_errors",
    "policy_summary",
    "experiment_summary",
    "policy_periods",
    "allocation",
    "utilization_by_device",
    "utilization_by_minute",
    "queue_over_time",
    "fragmentation",
    "energy",
    "gpu_hours",
    "fairness",
]
FORMATS = ("parquet", "csv")
TIMEOUT_S = 3600.0
_WHOLE = {"devices", "nodes", "experiments", "swaps", "policy_summary", "experiment_summary"}
_TIMES = ("time", "minute", "since")
_JOBS_SINCE = "job_id not in (select job_id from last_ends where ended < '{since}'::timestamptz)"


@dataclass(frozen=True, slots=True)
class Exported:
    """One file that was written."""

    name: str
    rows: int
    file: Path


def choose(names: Sequence[str]) -> list[str]:
    """Return the tables and views of these names, or all. Raises ValueError for a name that is unknown."""
    known = [*TABLES, *VIEWS]
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ValueError(
                f"There is no table or view {name!r} to export.{hint} There are: {', '.join(known)}"
            )
    return list(dict.fromkeys(names)) or known


def find_files(folder: Path, names: Sequence[str], file_format: str) -> dict[str, Path]:
    """Return the file of each table or view."""
    return {name: folder / f"{name}.{file_format}" for name in names}


def export(database: Path, files: dict[str, Path], since: str = "") -> Iterator[Exported]:
    """Write each table or view to its file. `since` is a time in ISO 8601. Raises QueryError."""
    for name, file in files.items():
        sql = f"from {name}{_condition(database, name, since) if since else ''}"
        [(rows,)] = run_query(database, sql, timeout_s=TIMEOUT_S, write_to=file).rows
        yield Exported(name, rows, file)


def _condition(database: Path, name: str, since: str) -> str:
    """The where clause that restricts a table or view to a period."""
    if name in _WHOLE:
        return ""
    columns = run_query(database, f"from {name} limit 0").columns
    if "job_id" in columns:
        jobs = _JOBS_SINCE.format(since=since)
        return f" where {jobs}" if name != "energy" else f" where job_id is null or {jobs}"
    times = [column for column in _TIMES if column in columns]
    return f" where {times[0]} >= '{since}'::timestamptz" if times else ""
