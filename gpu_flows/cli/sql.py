"""`gpu-flows sql`: ask the warehouse, in SQL or by the name of a stored question."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_flows.analytics.query_runner import QueryError, QueryResult, run_query
from gpu_flows.analytics.sql_files import named_queries
from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.problem import BadInput, Problem, inert
from gpu_flows.config.paths import default_warehouse

MOST_ROWS_DRAWN = 1000  # of a table, if nothing else is said


@parts.examples(
    'gpu-flows sql "select outcome, count(*) from job_history group by all"',
    "gpu-flows sql --list",
    "gpu-flows sql slowest_jobs --param limit=5 --csv",
    "gpu-flows sql --file report.sql --json",
)
def sql(
    question: Annotated[
        str,
        typer.Argument(
            metavar="[QUESTION]", help="SQL, the name of a stored question, or - to read SQL from stdin."
        ),
    ] = "",
    param: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A value for $K.")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the SQL from a file.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the stored questions.")] = False,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Answer in CSV.")] = False,
    max_rows: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many rows.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds it may take.")] = 30,
    memory: Annotated[int, typer.Option(min=64, metavar="MB", help="Memory it may take.")] = 1024,
    database: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The DuckDB file; the pool's own, if not said.")
    ] = None,
    pool: PoolOption = DEFAULT_POOL,
) -> None:
    """Ask the warehouse one question, also while jobs run.

    Read-only: it cannot change, load or reach anything else. Values of --param are JSON where
    they look like it, else text.
    """
    if as_json and as_csv:
        raise BadInput("--json and --csv are two answers; choose one.")
    if list_them:
        _list(as_json)
        return
    rows = max_rows or (None if as_json or as_csv else MOST_ROWS_DRAWN)
    asked = _question(question, file)
    given = parts.assignments(param or [], "--param", parts.json_or_text)
    where = database or warehouse_of(pool)
    try:
        found = run_query(where, asked, given, timeout_s=timeout, memory_mb=memory, max_rows=rows)
    except QueryError as error:
        raise Problem(str(error)) from None
    if as_json:
        parts.print_json(_objects(found))
    elif as_csv:
        _write_csv(found)
    else:
        _draw(found)
    if found.truncated:
        parts.remark(f"Only the first {len(found.rows):,} rows are shown; --max-rows N shows more.")


def _question(typed: str, file: Path | None) -> str:
    if bool(typed) == bool(file):
        what = "Two questions are asked." if typed else "Nothing is asked."
        raise BadInput(what, 'Give SQL, a name from `gpu-flows sql --list`, "-" for stdin, or --file.')
    try:
        text = file.read_text(encoding="utf-8") if file else sys.stdin.read() if typed == "-" else typed
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The question cannot be read: {error}.") from None
    if not text.strip():
        raise BadInput("Nothing is asked: the question is empty.")
    return text


def warehouse_of(pool: str) -> Path:
    """What the pool's Warehouse block says, if the server can tell; else the usual place."""
    from gpu_flows.cli.server import WAREHOUSE, Server

    with suppress(Problem):
        server = Server(timeout_s=3)
        block = server.block(WAREHOUSE, server.block_name(pool, "warehouse"))
        path = block["data"].get("path") if block else ""
        if path:
            return Path(path).expanduser()
    return default_warehouse()


def _list(as_json: bool) -> None:
    queries = named_queries()
    if as_json:
        parts.print_json(
            [
                {
                    "name": query.name,
                    "question": query.question,
                    "parameters": [
                        {"name": each.name, "default": each.default, "description": each.description}
                        for each in query.parameters
                    ],
                }
                for query in queries
            ]
        )
        return
    rows = [
        [query.name, " ".join(f"{p.name}={p.default or '?'}" for p in query.parameters), query.question]
        for query in queries
    ]
    parts.show(parts.table(["name", "parameters", "question"], rows))


# -- answers ----------------------------------------------------------------------------------


def _draw(found: QueryResult) -> None:
    """A table; row by row where a terminal is too narrow for one."""
    rows = [[_shown(value) for value in row] for row in found.rows]
    drawn = parts.table(found.columns, rows, right=_numbers(found))
    if parts.fits(drawn):
        parts.show(drawn)
    else:
        for row in rows:
            parts.show(parts.lines(*zip(found.columns, row, strict=True)))
            print()
    parts.remark(f"({len(rows):,} row{'s' if len(rows) != 1 else ''})")


def _numbers(found: QueryResult) -> set[str]:
    """The columns that hold numbers and nothing else."""
    columns = zip(found.columns, zip(*found.rows, strict=True), strict=False)
    return {name for name, values in columns if all(_is_number(each) or each is None for each in values)}


def _shown(value: Any) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _objects(found: QueryResult) -> list[dict[str, Any]]:
    names = _distinct(found.columns)
    return [dict(zip(names, map(_plain, row), strict=True)) for row in found.rows]


def _distinct(columns: Iterable[str]) -> list[str]:
    """`a, a` as `a, a_1`: an object has each name once."""
    names: list[str] = []
    for column in columns:
        name, number = column, 0
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _plain(value: object) -> object:
    """Exact numbers stay numbers, times are ISO."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _write_csv(found: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([_csv(name) for name in found.columns])
    writer.writerows([_csv(_plain(value)) for value in row] for row in found.rows)


def _csv(value: object) -> object:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if value is None or _is_number(value):
        return value
    text = str(value)
    text = f"'{text}" if text.startswith(_FORMULA) else text
    return inert(text) if sys.stdout.isatty() else text
