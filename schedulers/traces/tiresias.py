"""The simulator of Tiresias (NSDI 2019) and of those that grew from it."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.reading import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival


class Tiresias(Format):
    """Tiresias simulator: job_id, num_gpu, submit_time, iterations, model_name, duration, interval.

    Times are seconds; iterations and interval say nothing that the others do not.
    """

    name = "tiresias"
    columns = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        job_id, num_gpu, submit_time, model, duration = table.at(
            "job_id", "num_gpu", "submit_time", "model_name", "duration"
        )
        for row in table:
            gpus = table.whole(row, num_gpu)
            if not gpus:
                table.skip("asks for no GPU")
                continue
            job = Job(
                table.text(row, job_id),
                table.time(row, submit_time),
                gpus,
                kind=row[model],
                may_span_nodes=gpus > 1,
            )
            yield Arrival(job, table.number(row, duration))
