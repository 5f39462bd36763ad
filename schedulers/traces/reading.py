"""How a trace file becomes jobs: the format is recognized, read row by row, and cut to size.

`read` streams the jobs in the order of the file. `load` gathers them in arrival order from second
0 on, with the choices people make about a trace: a part of it, a sample of it, a heavier load.
Nothing is lost on the way without a word: whatever is left out is counted with its reason.
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gpu_flows.common.discovery import classes_in
from gpu_flows.common.validation import explain
from gpu_flows.schedulers.traces.table import Table, TraceError, first_row
from gpu_flows.schedulers.workload import Arrival


class Options(BaseModel):
    """What a format must be told beside the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Format(ABC):
    """One way to write a trace down. Its docstring's first line is what people see of it."""

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]  # a file that has all of these is probably of this format
    delimiter: ClassVar[str] = ","
    Options: ClassVar[type[Options]] = Options

    def __init__(self, **options: Any) -> None:
        self.options = self.Options(**options)

    @classmethod
    def about(cls) -> str:
        return (cls.__doc__ or "").strip().split("\n")[0]

    @classmethod
    def names(cls, first: list[str]) -> Sequence[str] | None:
        """The columns' names if a file with this first row may be ours: as a rule, that row itself."""
        return first if set(cls.columns) <= set(first) else None

    @abstractmethod
    def arrivals(self, table: Table) -> Iterator[Arrival]:
        """The jobs, in the order of the file."""


@cache
def formats() -> dict[str, type[Format]]:
    """Every format there is, by name."""
    found = {format.name: format for format in classes_in("gpu_flows.schedulers.traces", Format)}
    return dict(sorted(found.items()))


class Reading(Iterator[Arrival]):
    """The jobs of a file while it is read; `skipped` is complete when the last one is out."""

    def __init__(self, format: Format, table: Table) -> None:
        self.format = format.name
        self.skipped = table.skipped
        self._arrivals = _unique(format.arrivals(table), table)

    def __iter__(self) -> Iterator[Arrival]:
        return self._arrivals

    def __next__(self) -> Arrival:
        return next(self._arrivals)


def _unique(arrivals: Iterator[Arrival], table: Table) -> Iterator[Arrival]:
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


def read(path: Path | str, format: str | None = None, **options: Any) -> Reading:
    """The jobs of a trace, one row at a time, in the order and on the clock of the file."""
    path = Path(path)
    chosen = _named(format) if format else _recognized(path)
    first = first_row(path, chosen.delimiter)
    names = chosen.names(first)
    if names is None:
        raise TraceError(
            f"Trace {path} is not in the format {chosen.name}, which is: {chosen.about()} {_begins(first)}"
        )
    try:
        made = chosen(**options)
    except ValidationError as error:
        raise TraceError(_explain(chosen, error)) from None
    return Reading(made, Table(path, names, chosen.delimiter, headed=names is first))


def _named(format: str) -> type[Format]:
    if format not in formats():
        raise TraceError(f"There is no trace format {format!r}. There are: {', '.join(formats())}.")
    return formats()[format]


def _recognized(path: Path) -> type[Format]:
    """The format that names the most of the file's columns, among those that fit."""
    fitting = [format for format in formats().values() if format.names(first_row(path, format.delimiter))]
    if not fitting:
        header = first_row(path)
        if not header:
            raise TraceError(f"Trace {path} is empty. It needs a header and a row for every job.")
        raise TraceError(
            f"Trace {path} is in no known format. {_begins(header)} The simplest one is a CSV with the "
            "columns job_id, submit_time, num_gpus and duration (in seconds)."
        )
    return max(fitting, key=lambda format: len(format.columns))


def _begins(first: list[str]) -> str:
    return f"The file begins with: {', '.join(first)[:200]}."


def _explain(format: type[Format], error: ValidationError) -> str:
    options = ", ".join(format.Options.model_fields) or "none"
    return (
        f"Trace format {format.name} does not take these options ({explain(error)}). Its options: {options}."
    )


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in arrival order, the first at second 0, and how many rows are not among them and why."""

    source: str
    format: str
    arrivals: list[Arrival]
    skipped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        left_out = "".join(f"; {count:,} left out ({why})" for why, count in self.skipped.items())
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
    """The jobs of a trace in arrival order, the first at second 0.

    The choices are made in this order: `since` and `until` (seconds from the first job), `sample`
    (a fraction up to 1.0, or how many jobs), `limit` (the first so many), and `scale_load` (2 makes
    everybody arrive twice as fast).
    """
    _check("scale_load", scale_load, "a number above 0", 0 < scale_load < math.inf)
    _check("since", since, "a number of at least 0", since is None or 0 <= since < math.inf)
    _check("until", until, "a number above since", until is None or (since or 0) < until)
    _check("sample", sample, "a fraction up to 1 or a number of jobs", sample is None or _counts(sample))
    _check("limit", limit, "a whole number of at least 1", limit is None or limit >= 1)

    reading = read(path, format, **options)
    with _nothing_is_garbage():
        arrivals = sorted(reading, key=lambda each: (each.job.submitted, each.job.order))
    skipped = reading.skipped
    choices: dict[str, Callable[[list[Arrival]], list[Arrival]]] = {
        "outside since and until": lambda jobs: _between(jobs, since, until),
        "not in the sample": lambda jobs: _sample(jobs, sample, Random(seed)),
        "over the limit": lambda jobs: jobs[:limit],
    }
    for why, choose in choices.items():
        chosen = choose(arrivals)
        if len(chosen) < len(arrivals):
            skipped[why] += len(arrivals) - len(chosen)
        arrivals = chosen
    trace = Trace(str(path), reading.format, _from_zero(arrivals, scale_load), skipped)
    if not arrivals:
        raise TraceError(f"There are no jobs to be had: {trace}.")
    return trace


@contextmanager
def _nothing_is_garbage() -> Iterator[None]:
    """Spare the collector its fruitless walks over all these new objects: a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check(name: str, value: object, expected: str, fine: bool) -> None:
    if not fine:
        raise TraceError(f"{name}={value} makes no sense: it must be {expected}.")


def _counts(sample: float) -> bool:
    return 0 < sample <= 1 or (sample < math.inf and float(sample).is_integer() and sample > 0)


def _between(arrivals: list[Arrival], since: float | None, until: float | None) -> list[Arrival]:
    if since is None and until is None:
        return arrivals
    first = min((arrival.job.submitted for arrival in arrivals), default=0.0)
    start, end = first + (since or 0.0), first + (math.inf if until is None else until)
    return [arrival for arrival in arrivals if start <= arrival.job.submitted < end]


def _sample(arrivals: list[Arrival], sample: float | None, random: Random) -> list[Arrival]:
    """A random part. The number 1 is a job; 1.0 is everybody, as 0.5 is every second one."""
    if sample is None:
        return arrivals
    fraction = sample <= 1 and not isinstance(sample, int)
    count = max(1, round(sample * len(arrivals))) if fraction else int(sample)
    chosen = random.sample(range(len(arrivals)), min(count, len(arrivals)))
    return [arrivals[index] for index in sorted(chosen)]


def _from_zero(arrivals: list[Arrival], scale_load: float) -> list[Arrival]:
    """Everybody earlier, so that the first comes at 0 and the rest as much faster as asked."""
    first = min((arrival.job.submitted for arrival in arrivals), default=0.0)
    if first == 0 and scale_load == 1:
        return arrivals
    return [_moved(arrival, (arrival.job.submitted - first) / scale_load) for arrival in arrivals]


def _moved(arrival: Arrival, submitted: float) -> Arrival:
    """The same job at another time, with as long as ever until its deadline."""
    job = arrival.job
    deadline = None if job.deadline is None else submitted + (job.deadline - job.submitted)
    return replace(arrival, job=replace(job, submitted=submitted, deadline=deadline))
