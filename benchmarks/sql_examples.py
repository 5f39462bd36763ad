"""Writes the example answers into docs/sql.md: each named query on the hour of a lab (tests/lab_history.py).

    python benchmarks/sql_examples.py          # shows what the page should have
    python benchmarks/sql_examples.py --write  # writes it

A test checks that the page has what this prints.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]
PAGE = ROOT / "docs" / "sql.md"
BEGIN, END = "<!-- examples: benchmarks/sql_examples.py -->\n", "<!-- end of examples -->\n"


def make_examples() -> str:
    """Return each named query with its question, its parameters and its answer."""
    from lab_history import lab_facts

    from gpu_flows.analytics.recorder import Recorder
    from gpu_flows.analytics.sql_files import named_queries

    parts = []
    with TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder, "warehouse.duckdb"), Path(folder, "spool"))
        recorder.write(*lab_facts())
        recorder.close()
        connection = duckdb.connect(str(recorder.database), read_only=True)
        connection.execute("set TimeZone = 'UTC'")
        for query in named_queries():
            defaults = {parameter.name: parameter.default for parameter in query.parameters}
            result = connection.execute(query.sql, defaults or None)
            columns = [name for name, *_ in result.description or []]
            parts.append(f"### {query.name}\n\n{query.question}\n")
            parts += [f"- `{p.name}={p.default}`: {p.description}" for p in query.parameters]
            parts.append(("\n" if query.parameters else "") + _table(columns, result.fetchall()) + "\n")
        connection.close()
    return "\n".join(parts)


def _table(columns: list[str], rows: list[tuple[object, ...]]) -> str:
    """Return the rows in columns, as the terminal shows them."""
    cells = [columns, *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(["```", *(line.rstrip() for line in lines), "```"])


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)


def replace_examples(page: str, examples: str) -> str:
    """Return the page with these examples between its two marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + examples + "\n" + END + rest.split(END)[1]


def main() -> None:
    examples = make_examples()
    if "--write" in sys.argv:
        PAGE.write_text(replace_examples(PAGE.read_text(encoding="utf-8"), examples), encoding="utf-8")
    else:
        print(examples)


if __name__ == "__main__":
    main()
