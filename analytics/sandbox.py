"""The program that asks the warehouse one question, in a process of its own.

SQL is a programming language, so it is treated like somebody else's program: the file is opened
read-only, with no way to other files, extensions or settings; the operating system bounds the
memory, since DuckDB's own limit does not see everything; and `answers` kills us when time is up.

Reads one pickled Question from stdin, writes pickled messages to stdout: (kind, value) with kinds
opened, columns, rows, done (whether something was left out) or error ((name of a reason, text)).
Imports nothing of gpu_flows: it has to start quickly, from a checkout as from an installed wheel.
"""

from __future__ import annotations

import pickle
import sys
import time
from typing import Any

import duckdb

ROWS_AT_ONCE = 1_000
INTERPRETER_MB = 256  # what Python and an idle DuckDB occupy beside the query


def main() -> None:
    question = pickle.load(sys.stdin.buffer)
    _bound_memory(question["memory_mb"] + INTERPRETER_MB)
    try:
        _answer(question)
    except NoAnswerError as refusal:
        _tell("error", refusal.args)
    except duckdb.Error as error:
        _tell("error", _explain(error))
    except MemoryError:
        _tell("error", ("memory", ""))


class NoAnswerError(Exception):
    """A reason and a detail, which `answers` turns into advice."""


def _answer(question: dict[str, Any]) -> None:
    connection = _open(question)
    _tell("opened", None)
    statements = connection.extract_statements(question["sql"])
    if len(statements) != 1:
        raise NoAnswerError("statements", str(len(statements)))
    if statements[0].type.name not in ("SELECT", "EXPLAIN"):
        raise NoAnswerError("not a question", statements[0].type.name)
    wanted = statements[0].named_parameters
    missing = sorted(wanted - question["params"].keys())
    if missing:
        raise NoAnswerError("parameters", ", ".join(missing))
    result = connection.execute(question["sql"], {name: question["params"][name] for name in wanted} or None)
    _tell("columns", [column[0] for column in result.description or []])
    _tell("done", _send_rows(result, question["max_rows"], question["memory_mb"] << 20))


def _open(question: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    """Read-only and locked up. A recorder that is in the file leaves it in a moment: wait for it."""
    settings: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": False,
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": "",
        "memory_limit": f"{question['memory_mb']}MiB",
        "threads": 2,
        "lock_configuration": True,
    }
    deadline = time.monotonic() + question["patience_s"]
    while True:
        try:
            return duckdb.connect(question["database"], read_only=True, config=settings)
        except duckdb.IOException as error:
            if "Could not set lock" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(0.02)


def _send_rows(result: duckdb.DuckDBPyConnection, max_rows: int | None, max_bytes: int) -> bool:
    """Send rows until there are no more or enough. Returns whether some were left out."""
    sent = size = 0
    while rows := result.fetchmany(ROWS_AT_ONCE):
        if max_rows is not None and sent + len(rows) > max_rows:
            _tell("rows", rows[: max_rows - sent])
            return True
        sent += len(rows)
        size += _tell("rows", rows)
        if size > max_bytes:
            return True
    return False


def _explain(error: duckdb.Error) -> tuple[str, str]:
    text = str(error)
    if "Could not set lock" in text:
        return "locked", text.partition("(PID ")[2].partition(")")[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return "memory", ""
    if isinstance(error, duckdb.PermissionException):
        return "forbidden", text
    return "sql", text


def _bound_memory(megabytes: int) -> None:
    try:
        import resource
    except ImportError:  # not a Unix: DuckDB's own limit has to do
        return
    resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))


def _tell(kind: str, value: object) -> int:
    message = pickle.dumps((kind, value))
    sys.stdout.buffer.write(message)
    sys.stdout.buffer.flush()
    return len(message)


if __name__ == "__main__":
    main()
