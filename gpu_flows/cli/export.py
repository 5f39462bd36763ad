"""`gpu-flows export`: write the tables and views of the warehouse to Parquet or CSV files."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gpu_flows.analytics.export import FORMATS, Exported, choose, find_files
from gpu_flows.analytics.export import export as write_files
from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.options import (
    DEFAULT_POOL,
    DatabaseOption,
    JsonOption,
    PoolOption,
    duration_option,
    examples,
)
from gpu_flows.cli.sql import find_warehouse


@examples(
    "gpu-flows export history",
    "gpu-flows export last-week --since 7d --format csv",
    "gpu-flows export jobs --tables job_history,attempt_history --overwrite",
)
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go; created if needed.")],
    file_format: Annotated[str, typer.Option("--format", metavar="F", help="parquet or csv.")] = "parquet",
    since: Annotated[
        float, duration_option("Only jobs that had not ended so long ago, and later samples and decisions.")
    ] = 0.0,
    tables: Annotated[
        str, typer.Option(metavar="A,B", help="Only these tables and views; default: all.")
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    as_json: JsonOption = False,
    database: DatabaseOption = None,
    pool: PoolOption = DEFAULT_POOL,
) -> None:
    """Write every table of facts and the main views to a folder, one file each, also while jobs run.

    Times in the files are in UTC. In CSV, a text that a spreadsheet would take for a formula gets an
    apostrophe in front.
    """
    files = _choose_files(folder, tables, file_format, overwrite)
    begin = (datetime.now(UTC) - timedelta(seconds=since)).isoformat() if since else ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = _write_with_progress(database or find_warehouse(pool), files, begin)
    except QueryError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename or folder} cannot be written: {error.strerror}.") from None
    if as_json:
        output.print_json([{"name": one.name, "rows": one.rows, "file": str(one.file)} for one in written])
        return
    rows = [[one.name, f"{one.rows:,}", f"{one.file.stat().st_size:,}"] for one in written]
    output.show(output.make_table(["table or view", "rows", "bytes"], rows, right={"rows", "bytes"}))


def _choose_files(folder: Path, tables: str, file_format: str, overwrite: bool) -> dict[str, Path]:
    if file_format not in FORMATS:
        raise BadInput(f"--format is {' or '.join(FORMATS)}, not {file_format!r}.")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a folder.")
    try:
        names = choose([name.strip() for name in tables.split(",") if name.strip()])
    except ValueError as error:
        raise BadInput(f"{error}.") from None
    files = find_files(folder, names, file_format)
    if not overwrite and (present := [file.name for file in files.values() if file.exists()]):
        raise BadInput(f"{folder} has {', '.join(present)}. Choose another folder, or add --overwrite.")
    return files


def _write_with_progress(database: Path, files: dict[str, Path], since: str) -> list[Exported]:
    written, console = [], output.make_console()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True, disable=not sys.stdout.isatty()) as bars:
        bar = bars.add_task("", total=len(files))
        for one in write_files(database, files, since):
            written.append(one)
            bars.update(bar, advance=1, description=one.name)
    return written
