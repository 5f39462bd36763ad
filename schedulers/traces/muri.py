"""The simulator of Muri (SIGCOMM 2022): Tiresias's columns in milliseconds, and what stages take."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.reading import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival


class Muri(Format):
    """Muri simulator: Tiresias's columns in milliseconds, with resource_time_0 to 2 per iteration.

    resource_time_1 is taken for the time an iteration spends on the GPU, so its part of
    iteration_time is how busy the job keeps a device. By the values it is; upstream says nothing.
    """

    name = "muri"
    columns = (
        *("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval"),
        *("iteration_time", "resource_time_0", "resource_time_1", "resource_time_2", "priority"),
    )

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        job_id, num_gpu, submit_time, model, duration = table.at(
            "job_id", "num_gpu", "submit_time", "model_name", "duration"
        )
        iteration, on_gpu, priority = table.at("iteration_time", "resource_time_1", "priority")
        for row in table:
            gpus = table.whole(row, num_gpu)
            if not gpus:
                table.skip("asks for no GPU")
                continue
            job = Job(
                table.text(row, job_id),
                table.time(row, submit_time) / 1000,
                gpus,
                kind=row[model],
                priority=table.whole(row, priority),
                may_span_nodes=gpus > 1,
            )
            busy = table.number(row, on_gpu) / (table.number(row, iteration) or 1)
            yield Arrival(job, table.number(row, duration) / 1000, min(100.0, 100 * busy))
