"""Traces of the simulator of Muri (SIGCOMM 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpu_flows.schedulers.traces.format import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.traces.tiresias import Tiresias, read_rows
from gpu_flows.schedulers.workload import Arrival


class Muri(Format):
    """Muri simulator: Tiresias's columns in milliseconds, with resource_time_0 to 2 per iteration.

    The values suggest that resource_time_1 is the time an iteration spends on the GPU; upstream does
    not document it. Its part of iteration_time is the job's utilization.
    """

    name = "muri"
    columns = (
        *Tiresias.columns,
        *("iteration_time", "resource_time_0", "resource_time_1", "resource_time_2", "priority"),
    )

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        iteration, on_gpu, priority = table.positions("iteration_time", "resource_time_1", "priority")
        for row, arrival in read_rows(table, units_per_second=1000):
            job = replace(arrival.job, priority=table.integer(row, priority))
            busy = table.number(row, on_gpu) / (table.number(row, iteration) or 1)
            yield replace(arrival, job=job, utilization=min(100.0, 100 * busy))
