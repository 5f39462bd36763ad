"""Traces of the simulator of Tiresias (NSDI 2019) and its successors."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.format import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival


class Tiresias(Format):
    """Tiresias simulator: job_id, num_gpu, submit_time, iterations, model_name, duration, interval.

    Times are in seconds. The reader ignores iterations and interval, which follow from the others.
    """

    name = "tiresias"
    columns = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        return (arrival for _, arrival in read_rows(table))


def read_rows(table: Table, units_per_second: int = 1) -> Iterator[tuple[list[str], Arrival]]:
    """Yield each row with its job, for every format that has the columns of Tiresias."""
    job_id, num_gpu, submit_time, model, duration = table.positions(
        "job_id", "num_gpu", "submit_time", "model_name", "duration"
    )
    for _, row, gpus in table.gpu_rows(num_gpu):
        job = Job(
            table.text(row, job_id),
            table.time(row, submit_time) / units_per_second,
            gpus,
            kind=row[model],
            may_span_nodes=gpus > 1,
        )
        yield row, Arrival(job, table.number(row, duration) / units_per_second)
