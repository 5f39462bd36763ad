"""The simulator beside Alibaba's 2020 PAI trace (NSDI 2022): a row a job, already joined."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.reading import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival


class Pai(Format):
    """Alibaba PAI simulator: job_id, user, num_cpu, num_gpu, submit_time, duration, num_inst.

    num_cpu and num_gpu are for one of num_inst instances, which start together. Half a GPU is 500
    units of a device with 1000; above one GPU, parts are rounded up to whole devices.
    """

    name = "pai"
    columns = ("job_id", "user", "num_cpu", "num_gpu", "submit_time", "duration", "num_inst")

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        job_id, user, num_cpu, num_gpu, submit_time, duration, num_inst = table.at(*self.columns)
        for row in table:
            each = table.number(row, num_gpu)
            instances = table.whole(row, num_inst, least=1)
            if not each:
                table.skip("asks for no GPU")
                continue
            gpus, units = gpus_and_units(each, instances)
            job = Job(
                table.text(row, job_id),
                table.time(row, submit_time),
                gpus,
                units,
                user=row[user],
                may_span_nodes=gpus > 1,
                cpus=table.number(row, num_cpu),
            )
            yield Arrival(job, table.number(row, duration), units / 10 if units else 100.0)


def gpus_and_units(each: float, instances: int) -> tuple[int, int]:
    """How many devices, and how many thousandths of each (0: all), so many instances need."""
    if each < 1:
        return instances, max(1, round(1000 * each))
    return instances * math.ceil(each), 0
