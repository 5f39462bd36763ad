"""Runs SQL, or a named query, on a warehouse file and returns columns and rows.

Each query runs in a process of its own (query_process.py), which can only read the warehouse and is killed
when its time is up. Queries can run while a recorder writes: both open the file only for moments.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from threading import Timer
from typing import IO, Any
from uuid import uuid4

from gpu_flows.analytics.sql_files import NamedQuery, named_queries

PATIENCE_S = 5.0  # how long to wait for a writer to close the file
START_S = 10.0  # how long the query process may take to start on a busy machine
_PIPE = subprocess.PIPE


class QueryError(Exception):
    """The query has no result. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The columns and rows of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool  # there are more rows than requested, or than fit into the memory


def run_query(
    database: Path,
    sql_or_name: str,
    params: Mapping[str, object] | None = None,
    *,
    timeout_s: float = 30,
    memory_mb: int = 1024,
    max_rows: int | None = None,
    write_to: Path | None = None,
) -> QueryResult:
    """Run one query, read-only. Raises QueryError if it has no result.

    With `write_to`, the rows are written to this file, as its ending says (.csv or .parquet), and the result
    is one number: how many there were. The file appears when it is complete.

    >>> run_query(Path("warehouse.duckdb"), "slowest_jobs", {"limit": 5})
    >>> run_query(Path("warehouse.duckdb"), "select outcome, count(*) from job_history group by all")
    """
    if not database.exists():
        raise QueryError(f"There is no warehouse at {database} yet; a worker creates it when it starts.")
    sql, values = _resolve(sql_or_name, params or {})
    request = {
        "database": str(database),
        "sql": sql,
        "params": values,
        "memory_mb": memory_mb,
        "max_rows": max_rows,
        "patience_s": PATIENCE_S,
        "write_to": "",
    }
    if write_to:
        return _write_result(request, write_to, timeout_s)
    return _read_result(request, timeout_s)


def _write_result(request: dict[str, Any], file: Path, timeout_s: float) -> QueryResult:
    """Write the result to a file beside the wanted one, and rename it in the end."""
    unfinished = file.absolute().with_name(f".{uuid4().hex[:8]}-{file.name}")
    try:
        result = _read_result({**request, "write_to": str(unfinished)}, timeout_s)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return result


def _read_result(request: dict[str, Any], timeout_s: float) -> QueryResult:
    columns: list[str] = []
    rows: list[tuple[Any, ...]] = []
    truncated = False
    for kind, value in _exchange(request, timeout_s):
        if kind == "columns":
            columns = value
        elif kind == "rows":
            rows += value
        elif kind == "done":
            truncated = value
        elif kind == "error":
            reason, detail = value
            raise QueryError(_explain(reason, detail, Path(request["database"]), request["memory_mb"]))
    return QueryResult(columns, rows, truncated)


def _resolve(sql_or_name: str, params: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return the SQL to run and the values for its `$name` parameters."""
    queries = {query.name: query for query in named_queries()}
    name = re.sub(r"[\s-]+", "_", sql_or_name.strip().lower())
    if name in queries:
        return queries[name].sql, _with_defaults(queries[name], params)
    if re.fullmatch(r"[\w-]+", sql_or_name.strip()):
        close = get_close_matches(name, queries, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise QueryError(f"No named query is called {name!r}. {hint}There are: {', '.join(queries)}.")
    return sql_or_name, dict(params)


def _with_defaults(query: NamedQuery, params: Mapping[str, object]) -> dict[str, object]:
    known = {parameter.name: parameter.default for parameter in query.parameters}
    unknown = sorted(params.keys() - known.keys())
    if unknown:
        takes = f"It takes: {', '.join(known)}." if known else "It takes none."
        raise QueryError(f"{query.name} has no parameter {', '.join(unknown)}. {takes}")
    return {**{name: default for name, default in known.items() if default is not None}, **params}


def _exchange(request: dict[str, object], timeout_s: float) -> Iterator[tuple[str, Any]]:
    """Send the request to a new query process, and yield its messages until it ends or its time is up."""
    program = [sys.executable, "-P", str(Path(__file__).with_name("query_process.py"))]
    with subprocess.Popen(program, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        deadline = _Deadline(process, START_S + PATIENCE_S)
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(pickle.dumps(request))
                process.stdin.close()
            for kind, value in _messages(process.stdout):
                if kind == "opened":  # the time of the query itself starts here
                    deadline.cancel()
                    deadline = _Deadline(process, timeout_s)
                yield kind, value
                if kind in ("done", "error"):
                    return
            if deadline.passed:
                yield "error", ("timeout", f"{timeout_s:g}")
                return
            last_line = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            yield "error", ("crash", last_line)
        finally:
            deadline.cancel()
            process.kill()


class _Deadline(Timer):
    """Kills the process when the time is up."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        super().__init__(seconds, self._kill)
        self.process, self.passed, self.daemon = process, False, True
        self.start()

    def _kill(self) -> None:
        self.passed = True
        self.process.kill()


def _messages(stream: IO[bytes]) -> Iterator[tuple[str, Any]]:
    while True:
        try:
            yield pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):  # the process ended, perhaps within a message
            return


def _explain(reason: str, detail: str, database: Path, memory_mb: int) -> str:
    """Return the message for a query that failed: what happened and what to do."""
    match reason:
        case "sql":
            return detail
        case "forbidden":
            return f"A query may only read the warehouse: {detail.removeprefix('Permission Error: ')}"
        case "statement type":
            return f"Only queries can be run here (SELECT, FROM, WITH, SHOW, EXPLAIN ...), not {detail}."
        case "no rows":
            return f"{detail} has no rows that can be written to a file. Show it without --out."
        case "statements":
            return f"Run one query at a time; this text holds {detail} statements."
        case "parameters":
            return f"No value was given for ${detail.replace(', ', ', $')}."
        case "locked":
            return (
                f"Process {detail or 'unknown'} has {database} open for writing, so no other process can read"
                " it. A recorder closes it within moments; close any other program that has it open."
            )
        case "memory":
            return (
                f"The query needs more than {memory_mb} MB. Query less (a shorter time, fewer columns,"
                " no sort of all rows) or allow more memory."
            )
        case "timeout":
            return (
                f"No result within {detail} s, so the query was stopped. Query less (a shorter time,"
                " fewer columns) or allow more time."
            )
        case _:
            return (
                f"The query process died ({detail or 'without a message'}). Nothing was changed; try again."
            )
