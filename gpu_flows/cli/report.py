"""`gpu-flows report`: one HTML file about a pool, which works without a network."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_flows import __version__
from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.cli import output
from gpu_flows.cli.charts import require_charts
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import (
    DEFAULT_POOL,
    DatabaseOption,
    JsonOption,
    PoolOption,
    duration_option,
    examples,
)
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.common.files import write_atomically

if TYPE_CHECKING:
    from gpu_flows.analytics.report import Progress, Report


@examples(
    "gpu-flows report --open",
    "gpu-flows report --since 24h --out monday.html",
    "gpu-flows report --database w.duckdb --pool lab --json",
)
def report(
    since: Annotated[float, duration_option("How much of the history to show.", "7d")] = 7 * 86_400.0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the report goes.")] = Path("report.html"),
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    database: DatabaseOption = None,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a pool: figures, numbers and tables in one HTML file.

    The time that is shown ends with the last fact that was recorded. The file needs no network and no server,
    so it can be sent and kept. Needs the extra `charts`: pip install 'gpu-flows[charts]'.
    """
    require_charts("A report")
    from gpu_flows.analytics.report import NoHistory, find_scope, read_report, render_report

    if out.is_dir():
        raise BadInput(f"--out {out} is a folder; name a file, such as {out / 'report.html'}.")
    try:
        with _progress_bar() as progress:
            done = read_report(find_scope(database or find_warehouse(pool), pool, since), progress)
            page = render_report(done, datetime.now().astimezone(), __version__)
    except (QueryError, NoHistory) as error:
        raise CommandError(str(error)) from None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page)
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}.") from None
    if as_json:
        output.print_json(_summarize(done, out))
    else:
        _show(done, out, len(page))
    if open_it:
        webbrowser.open(out.resolve().as_uri())


def _summarize(done: Report, out: Path) -> dict[str, Any]:
    return {
        "path": str(out.resolve()),
        "pool": done.scope.pool,
        "since": done.scope.since.isoformat(),
        "until": done.scope.until.isoformat(),
        "numbers": done.measures,
        "figures": [
            {
                "key": drawn.key,
                "title": drawn.title,
                "subtitle": drawn.drawing.subtitle if drawn.drawing else "",
                "rows": len(drawn.data.rows),
                "missing": drawn.missing,
            }
            for drawn in done.figures
        ],
        "tables": [{"title": table.title, "rows": len(table.rows)} for table in done.tables],
    }


def _show(done: Report, out: Path, size: int) -> None:
    drawn = [each for each in done.figures if each.drawing]
    print(f"Wrote {escape(out.resolve())}: {len(drawn)} figures, {size / 1e6:.1f} MB.")
    for missing in done.figures:
        if missing.missing:
            print(f"No figure {missing.title!r}: {missing.missing}")


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with Bars(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("Reading the history", total=None)
        yield lambda title, read, total: bars.update(task, description=title, completed=read, total=total)
