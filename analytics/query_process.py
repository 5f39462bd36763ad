"""The program that runs one query on a warehouse file, in a process of its own.

SQL is a programming language, so a query is treated as an untrusted program. The file is opened read-only,
without access to other files, extensions or settings. The operating system limits the memory, because
DuckDB's own limit does not count everything. `query_runner` kills the process when its time is up.

A request may name a file, to which the result is then written: the only one that the query can access.

It reads one pickled request from stdin and writes pickled messages to stdout: (kind, value) with the kinds
opened, columns, rows, done (whether rows were left out) and error ((code, detail)).
It imports nothing of gpu_flows, so that it starts quickly and works from a checkout and from a wheel.
"""

from __future__ import annotations

import pickle
import re
import sys
import time
from typing import Any

import duckdb

ROWS_PER_MESSAGE = 1_000
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a text that begins so for a formula
STARTS_A_FORMULA = r"^[=+@\t\r-]"
# The first words of the types of numbers and times. A spreadsheet may take any other value for a text.
NO_TEXT = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    *("UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN", "DATE", "TIME", "TIMESTAMP", "INTERVAL"),
}
INTERPRETER_MB = 256  # what Python and an idle DuckDB need besides the query


def main() -> None:
    """Read the request, run it, and report every failure as a message."""
    request = pickle.load(sys.stdin.buffer)
    _limit_memory(request["memory_mb"] + INTERPRETER_MB)
    try:
        _run(request)
    except Refused as refused:
        _send("error", refused.args)
    except duckdb.Error as error:
        _send("error", _classify(error))
    except MemoryError:
        _send("error", ("memory", ""))


class Refused(Exception):
    """The query is not run. The arguments are a code and a detail, which `query_runner` explains."""


def _run(request: dict[str, Any]) -> None:
    connection = _open(request)
    _send("opened", None)
    statements = connection.extract_statements(request["sql"])
    if len(statements) != 1:
        raise Refused("statements", str(len(statements)))
    kind = statements[0].type.name
    if kind not in ("SELECT", "EXPLAIN"):
        raise Refused("statement type", kind)
    if request["write_to"] and kind == "EXPLAIN":
        raise Refused("no rows", kind)
    wanted = statements[0].named_parameters
    missing = sorted(wanted - request["params"].keys())
    if missing:
        raise Refused("parameters", ", ".join(missing))
    values = {name: request["params"][name] for name in wanted} or None
    sql = request["sql"]
    if request["write_to"]:
        sql = _copy_statement(connection, sql, values, request["write_to"])
    result = connection.execute(sql, values)
    _send("columns", [column[0] for column in result.description or []])
    _send("done", _send_rows(result, request["max_rows"], request["memory_mb"] << 20))


def _open(request: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    """Open the file read-only and with locked settings. Wait for a recorder, which closes it in a moment."""
    settings: dict[str, str | bool | int | float | list[str]] = {
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": "",
        "memory_limit": f"{request['memory_mb']}MiB",
        "threads": 2,
    }
    deadline = time.monotonic() + request["patience_s"]
    while True:
        try:
            connection = duckdb.connect(request["database"], read_only=True, config=settings)
            break
        except duckdb.IOException as error:
            if "Could not set lock" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(0.02)
    if request["write_to"]:
        connection.execute(f"set allowed_paths = [{_quote(request['write_to'])}]")
        connection.execute("set TimeZone = 'UTC'")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    return connection


def _copy_statement(connection: duckdb.DuckDBPyConnection, sql: str, values: Any, file: str) -> str:
    """Return the statement that writes the result of the query to the file, as CSV or Parquet by its name. In
    CSV, a text that a spreadsheet would take for a formula gets an apostrophe in front."""
    ends = [offset for offset, _ in duckdb.tokenize(sql) if sql.encode()[offset : offset + 1] == b";"]
    query = sql.encode()[: ends[0]].decode() if ends else sql
    if file.endswith(".parquet"):
        return f"copy (from ({query}\n)) to {_quote(file)} (format parquet, compression zstd)"
    described = connection.execute(f"describe (from ({query}\n))", values).fetchall()
    columns = ", ".join(_csv_column(name, kind) for name, kind, *_ in described)
    return f"copy (select {columns} from ({query}\n)) to {_quote(file)} (format csv, header)"


def _csv_column(name: str, kind: str) -> str:
    column = '"' + name.replace('"', '""') + '"'
    label = column.replace('"', "\"'", 1) if name.startswith(FORMULA) else column
    if re.split(r"[^A-Z]", kind)[0] in NO_TEXT:
        return f"{column} as {label}"
    text = f"{column}::varchar"
    return f"if(regexp_matches({text}, {_quote(STARTS_A_FORMULA)}), chr(39) || {text}, {text}) as {label}"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _send_rows(result: duckdb.DuckDBPyConnection, max_rows: int | None, max_bytes: int) -> bool:
    """Send rows up to the limits. Returns whether some were left out."""
    sent = size = 0
    while rows := result.fetchmany(ROWS_PER_MESSAGE):
        if max_rows is not None and sent + len(rows) > max_rows:
            _send("rows", rows[: max_rows - sent])
            return True
        sent += len(rows)
        size += _send("rows", rows)
        if size > max_bytes:
            return True
    return False


def _classify(error: duckdb.Error) -> tuple[str, str]:
    text = str(error)
    if "Could not set lock" in text:
        return "locked", text.partition("(PID ")[2].partition(")")[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return "memory", ""
    if isinstance(error, duckdb.PermissionException):
        return "forbidden", text
    return "sql", text


def _limit_memory(megabytes: int) -> None:
    try:
        import resource
    except ImportError:  # not a Unix: only DuckDB's own limit applies
        return
    resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))


def _send(kind: str, value: object) -> int:
    message = pickle.dumps((kind, value))
    sys.stdout.buffer.write(message)
    sys.stdout.buffer.flush()
    return len(message)


if __name__ == "__main__":
    main()
