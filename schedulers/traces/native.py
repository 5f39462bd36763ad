"""The project's own format: a CSV that is easy to write by hand or from a spreadsheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.format import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival

ParseCell = Callable[[Table, list[str], int], Any]


class Native(Format):
    """CSV with job_id, submit_time, num_gpus and duration (seconds), and many optional columns.

    Columns may be in any order. Unknown columns are ignored; an empty cell is like a missing column.
    """

    name = "native"
    columns = ("job_id", "submit_time", "num_gpus", "duration")

    @classmethod
    def column_names(cls, first_row: list[str]) -> Sequence[str] | None:
        has_plural = "num_gpus" in first_row
        names = ["num_gpus" if name == "num_gpu" and not has_plural else name for name in first_row]
        return first_row if super().column_names(names) else None

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        num_gpus = "num_gpus" if "num_gpus" in table else "num_gpu"
        job_id, submit_time, gpus, duration = table.positions("job_id", "submit_time", num_gpus, "duration")
        optional = [
            (table.positions(column)[0], field, parse)
            for column, field, parse in _OPTIONAL
            if column in table
        ]
        for row in table:
            requested = table.integer(row, gpus, least=1)
            fields: dict[str, Any] = {"may_span_nodes": requested > 1}
            for at, field, parse in optional:
                if row[at] and not row[at].isspace():
                    fields[field] = parse(table, row, at)
            if "min_gpus" in fields or "max_gpus" in fields:
                _complete_range(fields, requested, table, row)
            submitted = table.time(row, submit_time)
            if fields.get("deadline", submitted) < submitted:
                raise table.cell_error(
                    row, table.positions("deadline")[0], "after submit_time: both count from the same moment"
                )
            utilization, peak_mb = fields.pop("utilization", 100.0), fields.pop("peak_mb", 0)
            job = Job(table.text(row, job_id), submitted, requested, **fields)
            yield Arrival(job, table.number(row, duration), utilization, peak_mb)


def _complete_range(fields: dict[str, Any], requested: int, table: Table, row: list[str]) -> None:
    """Fill in the end of an elastic job's range that is not given: the number of GPUs it asks for."""
    least = fields["min_gpus"] = fields.get("min_gpus") or requested
    most = fields["max_gpus"] = fields.get("max_gpus") or requested
    if least > requested:
        raise table.cell_error(
            row, table.positions("min_gpus")[0], f"at most the {requested} GPUs the job asks for"
        )
    if most < requested:
        raise table.cell_error(
            row, table.positions("max_gpus")[0], f"at least the {requested} GPUs the job asks for"
        )


def _mebibytes(table: Table, row: list[str], at: int) -> int:
    return math.ceil(1024 * table.number(row, at))  # not round: 0 would mean a whole device


def _alternatives(table: Table, row: list[str], at: int) -> tuple[str, ...]:
    return tuple(part.strip() for part in row[at].split("|") if part.strip())


def _boolean(table: Table, row: list[str], at: int) -> bool:
    text = row[at].strip().lower()
    if text not in ("true", "yes", "1", "false", "no", "0"):
        raise table.cell_error(row, at, "true or false")
    return text in ("true", "yes", "1")


_OPTIONAL: tuple[tuple[str, str, ParseCell], ...] = (  # column, field of Job or Arrival, parser
    ("model", "kind", Table.text),
    ("vc", "user", Table.text),  # used if there is no column `user`
    ("user", "user", Table.text),
    ("priority", "priority", lambda table, row, at: table.integer(row, at, least=-(2**31))),
    ("deadline", "deadline", Table.time),
    ("gpu_memory_gb", "memory_mb", _mebibytes),
    ("peak_memory_gb", "peak_mb", _mebibytes),  # what it truly needs, if that is not what it states
    ("min_gpus", "min_gpus", Table.integer),
    ("max_gpus", "max_gpus", Table.integer),
    ("gpu_model", "models", _alternatives),
    ("nodes", "nodes", _alternatives),
    ("queue_priority", "queue_priority", Table.integer),  # of its work queue: lower numbers come first
    ("preemptible", "preemptible", _boolean),
    ("utilization", "utilization", lambda table, row, at: table.number(row, at, most=100)),
    ("expected", "expected_s", lambda table, row, at: table.number(row, at) or None),  # 0: unknown
    ("may_span_nodes", "may_span_nodes", _boolean),
    ("cpus", "cpus", Table.number),
    ("ram_gb", "ram_mb", _mebibytes),
)
