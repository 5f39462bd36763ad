"""Reads trace files: recognizes the format, reads the rows, and selects a part of the jobs.

`read` streams the jobs in the order of the file. `load` returns them in arrival order, the first at
second 0, after the selection that the caller asks for: a window, a sample, a limit, a heavier load.
Both count every row that they leave out, by reason.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from pydantic import ValidationError

from gpu_flows.common.discovery import summary
from gpu_flows.common.validation import explain
from gpu_flows.schedulers.traces.format import Format, formats
from gpu_flows.schedulers.traces.table import Table, TraceError, first_row
from gpu_flows.schedulers.workload import Arrival


class TraceReader(Iterator[Arrival]):
    """Iterates over the jobs of a file. `skipped` is complete after the last job."""

    def __init__(self, format: Format, table: Table) -> None:
        self.format = format.name
        self.skipped = table.skipped
        self._arrivals = _check_ids(format.arrivals(table), table)

    def __iter__(self) -> Iterator[Arrival]:
        return self._arrivals

    def __next__(self) -> Arrival:
        return next(self._arrivals)


def _check_ids(arrivals: Iterator[Arrival], table: Table) -> Iterator[Arrival]:
    seen: set[str] = set()
    for arrival in arrivals:
        id = arrival.job.id
        if id in seen:
            raise TraceError(
                f"Trace {table.path}, line {table.line}: there was a job {id!r} before. "
                "Every job needs an id of its own."
            )
        seen.add(id)
        yield arrival


def read(path: Path | str, format: str | None = None, **options: Any) -> TraceReader:
    """Read the jobs of a trace row by row, in the order of the file and with its submit times."""
    path = Path(path)
    chosen = _find_format(format) if format else _recognize_format(path)
    first = first_row(path, chosen.delimiter)
    names = chosen.column_names(first)
    if names is None:
        raise TraceError(
            f"Trace {path} is not in the format {chosen.name}, which is: {summary(chosen)} "
            f"{_describe_first_row(first)}"
        )
    try:
        made = chosen(**options)
    except ValidationError as error:
        known = ", ".join(chosen.Options.model_fields) or "none"
        raise TraceError(
            f"Trace format {chosen.name} does not take these options ({explain(error)}). "
            f"Its options: {known}."
        ) from None
    return TraceReader(made, Table(path, names, chosen.delimiter, has_header=names is first))


def _find_format(name: str) -> type[Format]:
    if name not in formats():
        raise TraceError(f"There is no trace format {name!r}. There are: {', '.join(formats())}.")
    return formats()[name]


def _recognize_format(path: Path) -> type[Format]:
    """Return the format that names the most of the file's columns, among those that fit."""
    fitting = [each for each in formats().values() if each.column_names(first_row(path, each.delimiter))]
    if not fitting:
        header = first_row(path)
        if not header:
            raise TraceError(f"Trace {path} is empty. It needs a header and a row for every job.")
        raise TraceError(
            f"Trace {path} is in no known format. {_describe_first_row(header)} The simplest one is a CSV "
            "with the columns job_id, submit_time, num_gpus and duration (in seconds)."
        )
    return max(fitting, key=lambda format: len(format.columns))


def _describe_first_row(first: list[str]) -> str:
    return f"The file begins with: {', '.join(first)[:200]}."


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in arrival order, the first at second 0, and how many rows were left out for which reason."""

    source: str
    format: str
    arrivals: list[Arrival]
    skipped: Counter[str] = field(default_factory=Counter)
    remark: str = ""  # what is not known of the jobs, for those who read figures of them

    def __str__(self) -> str:
        left_out = "".join(f"; {count:,} left out ({reason})" for reason, count in self.skipped.items())
        return f"{self.source} ({self.format}): {len(self.arrivals):,} jobs{left_out}"


def load(
    path: Path | str,
    format: str | None = None,
    *,
    since: float | None = None,
    until: float | None = None,
    sample: float | None = None,
    limit: int | None = None,
    scale_load: float = 1.0,
    seed: int = 0,
    **options: Any,
) -> Trace:
    """Read the jobs of a trace in arrival order, the first at second 0.

    The selections apply in this order: `since` and `until` (seconds from the first job), `sample`
    (a fraction up to 1.0, or a number of jobs), `limit` (the first jobs), and `scale_load` (with 2,
    jobs arrive twice as fast).
    """
    _check("scale_load", scale_load, "a number above 0", 0 < scale_load < math.inf)
    _check("since", since, "a number of at least 0", since is None or 0 <= since < math.inf)
    _check("until", until, "a number above since", until is None or (since or 0) < until)
    is_sample = sample is None or _is_fraction_or_count(sample)
    _check("sample", sample, "a fraction up to 1 or a number of jobs", is_sample)
    _check("limit", limit, "a whole number of at least 1", limit is None or limit >= 1)

    reader = read(path, format, **options)
    with _garbage_collection_off():
        arrivals = sorted(reader, key=lambda arrival: (arrival.job.submitted, arrival.job.order))
    skipped = reader.skipped
    selections: dict[str, Callable[[list[Arrival]], list[Arrival]]] = {
        "outside since and until": lambda jobs: _select_window(jobs, since, until),
        "not in the sample": lambda jobs: _select_sample(jobs, sample, Random(seed)),
        "over the limit": lambda jobs: jobs[:limit],
    }
    for reason, select in selections.items():
        selected = select(arrivals)
        if len(selected) < len(arrivals):
            skipped[reason] += len(arrivals) - len(selected)
        arrivals = selected
    trace = Trace(str(path), reader.format, _start_at_zero(arrivals, scale_load), skipped)
    if not arrivals:
        raise TraceError(f"The trace has no jobs to run: {trace}.")
    return trace


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """Switch the collector off while all new objects stay alive: it would take a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check(name: str, value: object, expected: str, valid: bool) -> None:
    if not valid:
        raise TraceError(f"{name}={value} is not valid: it must be {expected}.")


def _is_fraction_or_count(sample: float) -> bool:
    return 0 < sample <= 1 or (sample < math.inf and float(sample).is_integer() and sample > 0)


def _select_window(arrivals: list[Arrival], since: float | None, until: float | None) -> list[Arrival]:
    if since is None and until is None:
        return arrivals
    first = min((arrival.job.submitted for arrival in arrivals), default=0.0)
    start, end = first + (since or 0.0), first + (math.inf if until is None else until)
    return [arrival for arrival in arrivals if start <= arrival.job.submitted < end]


def _select_sample(arrivals: list[Arrival], sample: float | None, random: Random) -> list[Arrival]:
    """Draw a random part. The integer 1 means one job; 1.0 means all jobs, as 0.5 means half of them."""
    if sample is None:
        return arrivals
    is_fraction = sample <= 1 and not isinstance(sample, int)
    count = max(1, round(sample * len(arrivals))) if is_fraction else int(sample)
    chosen = random.sample(range(len(arrivals)), min(count, len(arrivals)))
    return [arrivals[index] for index in sorted(chosen)]


def _start_at_zero(arrivals: list[Arrival], scale_load: float) -> list[Arrival]:
    """Shift the first arrival to second 0 and divide the time between arrivals by `scale_load`."""
    first = min((arrival.job.submitted for arrival in arrivals), default=0.0)
    if first == 0 and scale_load == 1:
        return arrivals
    return [_move(arrival, (arrival.job.submitted - first) / scale_load) for arrival in arrivals]


def _move(arrival: Arrival, submitted: float) -> Arrival:
    """Return the job with another submit time and the same time from there to its deadline."""
    job = arrival.job
    deadline = None if job.deadline is None else submitted + (job.deadline - job.submitted)
    return replace(arrival, job=replace(job, submitted=submitted, deadline=deadline))
