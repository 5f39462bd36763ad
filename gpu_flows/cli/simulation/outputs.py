"""The files that a simulation writes: a row for every job, a page of figures, and facts in a warehouse."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gpu_flows.cli.charts import require_charts
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.simulation.charts import PAGE, write_charts
from gpu_flows.cli.simulation.inputs import Inputs
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.cli.simulation.running import Outcome
from gpu_flows.cli.simulation.warehouse import load_facts
from gpu_flows.schedulers.simulation.summary import JOB_COLUMNS


def check_outputs(options: SimulationOptions) -> None:
    """Check that every output can be written, before a simulation that may take hours. Raises BadInput."""
    from gpu_flows.analytics.recorded_trace import is_warehouse

    if options.jobs_out and options.jobs_out.suffix not in (".csv", ".json"):
        raise BadInput(f"--jobs-out {options.jobs_out} must end in .csv or .json.")
    if options.charts:
        require_charts("--charts")
    if options.charts and os.path.isfile(options.charts):
        raise BadInput(f"--charts {options.charts} is a file; name a folder.")
    chart = options.charts and options.charts / PAGE
    for name, path in (("jobs-out", options.jobs_out), ("warehouse", options.warehouse), ("charts", chart)):
        if path:
            _try_to_write(name, path)
    if options.warehouse and options.warehouse.exists() and not is_warehouse(options.warehouse):
        raise BadInput(f"--warehouse {options.warehouse} exists, and is not a DuckDB file.")


def _try_to_write(option: str, path: Path) -> None:
    """Open the file for writing, then remove the file and the folders that this created."""
    file = Path(os.path.realpath(path))  # the target of a link is removed, never the link
    absent = [place for place in (file, *file.parents) if not os.path.exists(place)]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
    except OSError as error:
        raise BadInput(f"--{option}: {path} cannot be written: {error.strerror}.") from None
    finally:
        for created in filter(os.path.exists, absent):
            created.rmdir() if created.is_dir() else created.unlink()


def write_outputs(inputs: Inputs, outcomes: Sequence[Outcome], spool: str) -> Iterator[str]:
    """Write every output, even if another fails. Yields an error message for each that failed."""
    options = inputs.options
    by_policy = {choice.label: outcome for choice, outcome in zip(inputs.choices, outcomes, strict=True)}
    chart_data = {label: outcome.chart_data for label, outcome in by_policy.items() if outcome.chart_data}
    outputs: list[tuple[Path | None, Callable[[Path], None]]] = [
        (options.jobs_out, lambda path: _write_jobs(path, by_policy)),
        (options.charts, lambda path: write_charts(path, chart_data, f"{inputs.trace} on {options.cluster}")),
        (options.warehouse, lambda path: load_facts(path, spool)),
    ]
    for path, write in outputs:
        try:
            if path:
                write(path)
        except OSError as error:
            yield f"{error.filename or path} cannot be written: {error.strerror}."
        except CommandError as error:
            yield f"{error.what} No facts were written."


def _write_jobs(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    rows = [(label, *row) for label, outcome in outcomes.items() for row in outcome.jobs]
    columns = ("policy", *JOB_COLUMNS)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".json":
            json.dump([dict(zip(columns, row, strict=True)) for row in rows], file, indent=1)
        else:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(map(_to_csv_cell, row) for row in rows)


def _to_csv_cell(value: object) -> object:
    """Devices are separated by blanks; true and false are written as in JSON."""
    match value:
        case list():
            return " ".join(value)
        case bool():
            return str(value).lower()
        case _:
            return value
