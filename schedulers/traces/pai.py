"""Traces of the simulator that comes with Alibaba's 2020 PAI trace (NSDI 2022): one row per job."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.format import Format
from gpu_flows.schedulers.traces.table import NO_GPU, Table
from gpu_flows.schedulers.workload import Arrival


class Pai(Format):
    """Alibaba PAI simulator: job_id, user, num_cpu, num_gpu, submit_time, duration, num_inst.

    num_cpu and num_gpu are per instance; the num_inst instances start together. Half a GPU is 500
    units of a device with 1000; above one GPU, fractions are rounded up to whole devices.
    """

    name = "pai"
    columns = ("job_id", "user", "num_cpu", "num_gpu", "submit_time", "duration", "num_inst")

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        job_id, user, num_cpu, num_gpu, submit_time, duration, num_inst = table.positions(*self.columns)
        for row in table:
            per_instance = table.number(row, num_gpu)
            instances = table.integer(row, num_inst, least=1)
            if not per_instance:
                table.skip(NO_GPU)
                continue
            gpus, units = gpus_and_units(per_instance, instances)
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


def gpus_and_units(per_instance: float, instances: int) -> tuple[int, int]:
    """Return how many devices the instances need, and how many thousandths of each (0: all)."""
    if per_instance < 1:
        return instances, max(1, round(1000 * per_instance))
    return instances * math.ceil(per_instance), 0
