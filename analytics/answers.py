"""Asking the warehouse: SQL, or the name of a stored question, in; columns and rows, out.

Each question runs in a process of its own (sandbox.py) that cannot harm anything and is killed when
its time is up. It may run while the recorder writes: both are in the file only for moments.
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

from gpu_flows.analytics.catalog import NamedQuery, named_queries

__all__ = ["Answer", "NamedQuery", "QueryError", "answer", "named_queries"]

PATIENCE_S = 5.0  # how long to wait for a writer to leave the file
START_S = 10.0  # how long the sandbox itself may take to start on a busy machine
_PIPE = subprocess.PIPE


class QueryError(Exception):
    """There is no answer; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    columns: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool  # more rows than asked for, or than fit the memory


def answer(
    database: Path,
    sql_or_name: str,
    params: Mapping[str, object] | None = None,
    *,
    timeout_s: float = 30,
    memory_mb: int = 1024,
    max_rows: int | None = None,
) -> Answer:
    """Ask one question, read-only. Raises QueryError when there is no answer.

    >>> answer(Path("warehouse.duckdb"), "slowest_jobs", {"limit": 5})
    >>> answer(Path("warehouse.duckdb"), "select outcome, count(*) from job_history group by all")
    """
    if not database.exists():
        raise QueryError(f"There is no warehouse at {database} yet; a worker makes it when it starts.")
    sql, values = _resolve(sql_or_name, params or {})
    question = {
        "database": str(database),
        "sql": sql,
        "params": values,
        "memory_mb": memory_mb,
        "max_rows": max_rows,
        "patience_s": PATIENCE_S,
    }
    columns: list[str] = []
    rows: list[tuple[Any, ...]] = []
    truncated = False
    for kind, value in _ask(question, timeout_s):
        if kind == "columns":
            columns = value
        elif kind == "rows":
            rows += value
        elif kind == "done":
            truncated = value
        elif kind == "error":
            reason, detail = value
            raise QueryError(_advice(reason, detail, database, memory_mb))
    return Answer(columns, rows, truncated)


def _resolve(sql_or_name: str, params: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """The SQL to run, and the values for its `$name`s."""
    queries = {query.name: query for query in named_queries()}
    name = re.sub(r"[\s-]+", "_", sql_or_name.strip().lower())
    if name in queries:
        return queries[name].sql, _with_defaults(queries[name], params)
    if re.fullmatch(r"[\w-]+", sql_or_name.strip()):
        close = get_close_matches(name, queries, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise QueryError(f"No stored question is called {name!r}. {hint}There are: {', '.join(queries)}.")
    return sql_or_name, dict(params)


def _with_defaults(query: NamedQuery, params: Mapping[str, object]) -> dict[str, object]:
    known = {parameter.name: parameter.default for parameter in query.parameters}
    unknown = sorted(params.keys() - known.keys())
    if unknown:
        takes = f"It takes: {', '.join(known)}." if known else "It takes none."
        raise QueryError(f"{query.name} has no parameter {', '.join(unknown)}. {takes}")
    return {**{name: default for name, default in known.items() if default is not None}, **params}


def _ask(question: dict[str, object], timeout_s: float) -> Iterator[tuple[str, Any]]:
    """What the sandbox says, until it is done or its time is up."""
    program = [sys.executable, "-P", str(Path(__file__).with_name("sandbox.py"))]
    with subprocess.Popen(program, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        deadline = _Deadline(process, START_S + PATIENCE_S)
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(pickle.dumps(question))
                process.stdin.close()
            for kind, value in _messages(process.stdout):
                if kind == "opened":  # the question's own time starts here
                    deadline.cancel()
                    deadline = _Deadline(process, timeout_s)
                yield kind, value
                if kind in ("done", "error"):
                    return
            if deadline.passed:
                yield "error", ("timeout", f"{timeout_s:g}")
                return
            last_words = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            yield "error", ("crash", last_words)
        finally:
            deadline.cancel()
            process.kill()


class _Deadline(Timer):
    """Kills the process when it passes."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        super().__init__(seconds, self._pass)
        self.process, self.passed, self.daemon = process, False, True
        self.start()

    def _pass(self) -> None:
        self.passed = True
        self.process.kill()


def _messages(stream: IO[bytes]) -> Iterator[tuple[str, Any]]:
    while True:
        try:
            yield pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):  # it ended, perhaps in the middle of a word
            return


def _advice(reason: str, detail: str, database: Path, memory_mb: int) -> str:
    """What to tell a human about each way a question can fail."""
    match reason:
        case "sql":
            return detail
        case "forbidden":
            return f"A question may only look at the warehouse: {detail.removeprefix('Permission Error: ')}"
        case "not a question":
            return f"Only questions are answered here (SELECT, FROM, WITH, SHOW, EXPLAIN ...), not {detail}."
        case "statements":
            return f"Ask one question at a time; this holds {detail} statements."
        case "parameters":
            return f"No value was given for ${detail.replace(', ', ', $')}."
        case "locked":
            return (
                f"Process {detail or 'unknown'} has {database} open for writing, so nobody else can read"
                " it. A recorder leaves it within moments; close any other program that has it open."
            )
        case "memory":
            return (
                f"The question needs more than {memory_mb} MB. Ask for less (a shorter time, fewer columns,"
                " no sort of everything) or allow more memory."
            )
        case "timeout":
            return (
                f"No answer within {detail} s, so the question was stopped. Ask for less (a shorter time,"
                " fewer columns) or allow more time."
            )
        case _:
            return f"The query process died ({detail or 'no last words'}). Nothing was changed; try again."
