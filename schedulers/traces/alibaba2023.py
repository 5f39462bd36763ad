"""Alibaba's 2023 GPU-sharing cluster, the data behind FGD (ATC 2023): openb_pod_list_*.csv.

A pod may ask for a part of a device, in thousandths. The scheduler shares devices by memory, so a
part is expressed as memory on devices with 1000 units of it, which `nodes` declares.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from gpu_flows.schedulers.model import Device, Job, Node
from gpu_flows.schedulers.traces.format import Format, FormatOptions
from gpu_flows.schedulers.traces.table import Table, TraceError, first_row
from gpu_flows.schedulers.workload import Arrival

WHOLE_DEVICE = 1000  # units of a device, instead of MiB
FOREVER_S = 1e9  # over thirty years: no pod ends

_TIMES = ("creation_time", "deletion_time", "scheduled_time")


class Alibaba2023Options(FormatOptions):
    static: bool = Field(False, title="Packing only")
    """Take every GPU pod, scheduled or not. Pods arrive one a second, in file order, and never end."""


class Alibaba2023(Format):
    """Alibaba 2023 pods (openb_pod_list_*.csv): parts of GPUs in thousandths, GPU models, CPU, RAM.

    A pod runs from scheduled_time to deletion_time. Lists without times can only be packed.
    """

    name = "alibaba2023"
    columns = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
    Options = Alibaba2023Options
    options: Alibaba2023Options

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        name, cpu_milli, memory_mib, num_gpu, gpu_milli = table.positions(*self.columns)
        gpu_spec = table.positions("gpu_spec")[0] if "gpu_spec" in table else None
        timed = not self.options.static and all(column in table for column in _TIMES)
        created, deleted, scheduled = table.positions(*_TIMES) if timed else (0, 0, 0)
        for number, row, gpus in table.gpu_rows(num_gpu):
            if timed and not row[scheduled]:
                table.skip("never scheduled")
                continue
            share = int(table.number(row, gpu_milli, least=1, most=WHOLE_DEVICE))
            shares = gpus == 1 and share < WHOLE_DEVICE
            job = Job(
                table.text(row, name),
                table.time(row, created) if timed else float(number - 1),
                gpus,
                share if shares else 0,
                models=tuple(filter(None, row[gpu_spec].split("|"))) if gpu_spec is not None else (),
                cpus=table.number(row, cpu_milli) / 1000,
                ram_mb=table.integer(row, memory_mib),
            )
            duration = FOREVER_S
            if timed:
                duration = table.time(row, deleted) - table.time(row, scheduled)
                if duration < 0:
                    raise table.cell_error(row, deleted, "after scheduled_time")
            yield Arrival(job, duration, share / 10 if shares else 100.0)


def nodes(path: Path | str) -> list[Node]:
    """Read the nodes of openb_node_list_*.csv, with devices of 1000 units each."""
    path = Path(path)
    table = Table(path, first_row(path))
    sn, cpu_milli, memory_mib, gpu, model = table.positions("sn", "cpu_milli", "memory_mib", "gpu", "model")
    found: dict[str, Node] = {}
    for row in table:
        name = table.text(row, sn)
        if name in found:
            raise TraceError(f"Node list {path}, line {table.line}: there was a node {name!r} before.")
        found[name] = Node(
            name,
            tuple(
                Device(f"{name}-{index}", name, index, row[model], WHOLE_DEVICE)
                for index in range(table.integer(row, gpu))
            ),
            cpus=table.number(row, cpu_milli) / 1000,
            ram_mb=table.integer(row, memory_mib),
        )
    return list(found.values())
