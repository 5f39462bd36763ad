"""`gpu-flows sql`: query the warehouse, in SQL or by the name of a named query."""

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
from gpu_flows.analytics.sql_files import NamedQuery, named_queries
from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import (
    DEFAULT_POOL,
    DatabaseOption,
    JsonOption,
    PoolOption,
    examples,
    parse_assignments,
    parse_json_or_text,
)
from gpu_flows.config.paths import default_warehouse

MOST_ROWS_SHOWN = 1000  # of a table, without --max-rows


@examples(
    'gpu-flows sql "select outcome, count(*) from job_history group by all"',
    "gpu-flows sql --list",
    "gpu-flows sql --list deadline",
    "gpu-flows sql 'from job_history' --out jobs.parquet",
    "gpu-flows sql slowest_jobs --param limit=5 --csv",
    "gpu-flows sql --file report.sql --json",
)
def sql(
    question: Annotated[
        str,
        typer.Argument(
            metavar="[QUERY]", help="SQL, the name of a named query, or - to read SQL from stdin."
        ),
    ] = "",
    param: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Value of the parameter $K; may be repeated.")
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the SQL from a file.")] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the named queries, or only those about a word.")
    ] = False,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all rows to FILE.parquet or FILE.csv.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let --out replace a file.")] = False,
    max_rows: Annotated[int | None, typer.Option(min=1, metavar="N", help="Print at most N rows.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Time limit of the query, in seconds.")
    ] = 30,
    memory: Annotated[
        int, typer.Option(min=64, metavar="MB", help="Memory limit of the query, in MB.")
    ] = 1024,
    database: DatabaseOption = None,
    pool: PoolOption = DEFAULT_POOL,
) -> None:
    """Run one query on the warehouse, also while jobs run.

    The query is read-only: it cannot change the warehouse, or read other files. Values of --param are
    parsed as JSON if they are JSON, else taken as text.
    """
    if as_json and as_csv:
        raise BadInput("--json and --csv exclude each other; choose one.")
    if list_them:
        _list_queries(as_json, question)
        return
    if out:
        check_output(out, overwrite)
    rows = max_rows or (None if as_json or as_csv else MOST_ROWS_SHOWN)
    query = _read_question(question, file)
    values = parse_assignments(param or [], "--param", parse_json_or_text)
    file_name = database or find_warehouse(pool)
    limits: dict[str, Any] = {"timeout_s": timeout, "memory_mb": memory}
    try:
        found = run_query(file_name, query, values, max_rows=rows, write_to=out, **limits)
    except QueryError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}.") from None
    if out:
        output.print_remark(f"{found.rows[0][0]:,} rows were written to {escape(str(out))}.")
    elif as_json:
        output.print_json(_to_objects(found))
    elif as_csv:
        write_csv(found)
    else:
        _show_table(found)
    if found.truncated:
        output.print_remark(f"Only the first {len(found.rows):,} rows are shown; --max-rows N shows more.")


def _read_question(typed: str, file: Path | None) -> str:
    if bool(typed) == bool(file):
        what = "Two queries are given." if typed else "No query is given."
        raise BadInput(what, 'Give SQL, a name from `gpu-flows sql --list`, "-" for stdin, or --file.')
    try:
        text = file.read_text(encoding="utf-8") if file else sys.stdin.read() if typed == "-" else typed
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The query cannot be read: {error}.") from None
    if not text.strip():
        raise BadInput("The query is empty.")
    return text


def check_output(file: Path, overwrite: bool) -> None:
    """Check the ending of a file to write, and that no file is replaced unasked. Raises BadInput."""
    if file.suffix not in (".csv", ".parquet"):
        raise BadInput(f"{file} must end in .csv or .parquet.")
    if file.exists() and not overwrite:
        raise BadInput(f"{file} exists. Choose another name, or replace it with --overwrite.")
    if not file.absolute().parent.is_dir():
        raise BadInput(f"The folder of {file} does not exist.")


def find_warehouse(pool: str) -> Path:
    """The file that the pool's Warehouse block names, or the default one."""
    from gpu_flows.cli.prefect_client import WAREHOUSE_BLOCK, PrefectClient

    with suppress(CommandError):
        path = PrefectClient(timeout_s=3).read_pool_block(pool, "warehouse", WAREHOUSE_BLOCK).get("path")
        if path:
            return Path(path).expanduser()
    return default_warehouse()


def _list_queries(as_json: bool, words: str) -> None:
    """Show the named queries; with words, those that have them in their name, question or parameters."""
    wanted = words.lower().split()
    queries = [query for query in named_queries() if all(word in _text_of(query) for word in wanted)]
    if not queries:
        raise CommandError(f"No named query is about {words!r}.", "`gpu-flows sql --list` shows all.")
    if as_json:
        output.print_json([_describe(query) for query in queries])
        return
    rows = [
        [query.name, " ".join(f"{p.name}={p.default or '?'}" for p in query.parameters), query.question]
        for query in queries
    ]
    output.show(output.make_table(["name", "parameters", "question"], rows))
    if len(queries) == 1:
        for parameter in queries[0].parameters:
            print(f"  --param {parameter.name}={parameter.default or '?'}   {parameter.description}")


def _text_of(query: NamedQuery) -> str:
    return " ".join([query.name, query.question, *(p.description for p in query.parameters)]).lower()


def _describe(query: NamedQuery) -> dict[str, Any]:
    parameters = [
        {"name": p.name, "default": p.default, "description": p.description} for p in query.parameters
    ]
    return {"name": query.name, "question": query.question, "parameters": parameters}


# -- results ----------------------------------------------------------------------------------


def _show_table(found: QueryResult) -> None:
    """Print a table, or a list for each row where the terminal is too narrow."""
    rows = [[f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in found.rows]
    table = output.make_table(found.columns, rows, right=_find_number_columns(found))
    if output.fits(table):
        output.show(table)
    else:
        for row in rows:
            output.show(output.make_value_list(*zip(found.columns, row, strict=True)))
            print()
    output.print_remark(f"({len(rows):,} row{'s' if len(rows) != 1 else ''})")


def _find_number_columns(found: QueryResult) -> set[str]:
    """The columns that hold only numbers."""
    columns = zip(found.columns, zip(*found.rows, strict=True), strict=False)
    return {name for name, values in columns if all(_is_number(value) or value is None for value in values)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _to_objects(found: QueryResult) -> list[dict[str, Any]]:
    names = _make_distinct(found.columns)
    return [dict(zip(names, map(_to_plain_value, row), strict=True)) for row in found.rows]


def _make_distinct(columns: Iterable[str]) -> list[str]:
    """Turn `a, a` into `a, a_1`, because an object has each name once."""
    names: list[str] = []
    for column in columns:
        name, number = column, 0
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _to_plain_value(value: object) -> object:
    """Decimals become numbers, times become ISO texts."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(found: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([_to_csv_cell(name) for name in found.columns])
    writer.writerows([_to_csv_cell(_to_plain_value(value)) for value in row] for row in found.rows)


def _to_csv_cell(value: object) -> object:
    """The value; with an apostrophe in front where a spreadsheet would take it for a formula."""
    if value is None or _is_number(value):
        return value
    text = str(value)
    text = f"'{text}" if text.startswith(_FORMULA) else text
    return escape(text) if sys.stdout.isatty() else text
