"""Microsoft's Philly cluster, as the CSV that AdaptDL (OSDI 2021) made of the 2017 job log."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.reading import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival


class Philly(Format):
    """Microsoft Philly 2017 as CSV: timestamp, duration, num_gpus, gpu_time, cluster.

    Jobs have no ids there: they are numbered by row. The virtual cluster becomes the user.
    """

    name = "philly"
    columns = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        timestamp, duration, num_gpus, cluster = table.at("timestamp", "duration", "num_gpus", "cluster")
        first = table.earliest(timestamp)  # the file is in no order
        for number, row in enumerate(table, start=1):
            gpus = table.whole(row, num_gpus)
            if not gpus:
                table.skip("asks for no GPU")
                continue
            job = Job(
                f"{number:06d}",
                (table.date(row, timestamp) - first).total_seconds(),
                gpus,
                user=row[cluster],
                may_span_nodes=gpus > 1,
            )
            yield Arrival(job, table.number(row, duration))
