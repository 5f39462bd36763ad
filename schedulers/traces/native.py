"""The format of this project: what a spreadsheet of jobs looks like without thinking about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.reading import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival

Cell = Callable[[Table, list[str], int], Any]


class Native(Format):
    """CSV with job_id, submit_time, num_gpus and duration (seconds), and many optional columns.

    Columns in any order; what is not known is ignored, and an empty cell is as good as no column.
    """

    name = "native"
    columns = ("job_id", "submit_time", "num_gpus", "duration")

    @classmethod
    def names(cls, first: list[str]) -> Sequence[str] | None:
        plural = ["num_gpus" if name == "num_gpu" and "num_gpus" not in first else name for name in first]
        return first if super().names(plural) else None

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        num_gpus = "num_gpus" if "num_gpus" in table else "num_gpu"
        job_id, submit_time, gpus, duration = table.at("job_id", "submit_time", num_gpus, "duration")
        optional = [(table.at(name)[0], meaning, cell) for name, meaning, cell in _OPTIONAL if name in table]
        for row in table:
            wants = table.whole(row, gpus, least=1)
            fields: dict[str, Any] = {"may_span_nodes": wants > 1}
            for at, meaning, cell in optional:
                if row[at] and not row[at].isspace():
                    fields[meaning] = cell(table, row, at)
            if "min_gpus" in fields or "max_gpus" in fields:
                _complete_range(fields, wants, table, row)
            submitted = table.time(row, submit_time)
            if fields.get("deadline", submitted) < submitted:
                raise table.bad(row, table.at("deadline")[0], "after submit_time: both count from one moment")
            utilization = fields.pop("utilization", 100.0)
            job = Job(table.text(row, job_id), submitted, wants, **fields)
            yield Arrival(job, table.number(row, duration), utilization)


def _complete_range(fields: dict[str, Any], wants: int, table: Table, row: list[str]) -> None:
    """Both ends of an elastic job's range: the one that is not given is what it asks for."""
    least = fields["min_gpus"] = fields.get("min_gpus") or wants
    most = fields["max_gpus"] = fields.get("max_gpus") or wants
    if least > wants:
        raise table.bad(row, table.at("min_gpus")[0], f"at most the {wants} GPUs the job asks for")
    if most < wants:
        raise table.bad(row, table.at("max_gpus")[0], f"at least the {wants} GPUs the job asks for")


def _mebibytes(table: Table, row: list[str], at: int) -> int:
    return math.ceil(1024 * table.number(row, at))  # a little memory must not become 0: a whole device


def _alternatives(table: Table, row: list[str], at: int) -> tuple[str, ...]:
    return tuple(part.strip() for part in row[at].split("|") if part.strip())


def _yes_or_no(table: Table, row: list[str], at: int) -> bool:
    said = row[at].strip().lower()
    if said not in ("true", "yes", "1", "false", "no", "0"):
        raise table.bad(row, at, "true or false")
    return said in ("true", "yes", "1")


_OPTIONAL: tuple[tuple[str, str, Cell], ...] = (
    ("model", "kind", Table.text),
    ("vc", "user", Table.text),  # the virtual cluster stands in for a user who is not named
    ("user", "user", Table.text),
    ("priority", "priority", lambda table, row, at: table.whole(row, at, least=-(2**31))),
    ("deadline", "deadline", Table.time),
    ("gpu_memory_gb", "memory_mb", _mebibytes),
    ("min_gpus", "min_gpus", Table.whole),
    ("max_gpus", "max_gpus", Table.whole),
    ("gpu_model", "models", _alternatives),
    ("utilization", "utilization", lambda table, row, at: table.number(row, at, most=100)),
    ("expected", "expected_s", lambda table, row, at: table.number(row, at) or None),  # 0: unknown
    ("may_span_nodes", "may_span_nodes", _yes_or_no),
    ("cpus", "cpus", Table.number),
    ("ram_gb", "ram_mb", _mebibytes),
)
