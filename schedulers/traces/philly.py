"""Microsoft's Philly cluster, in the CSV that AdaptDL (OSDI 2021) derives from the 2017 job log."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.format import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival


class Philly(Format):
    """Microsoft Philly 2017 as CSV: timestamp, duration, num_gpus, gpu_time, cluster.

    The file has no job ids, so the row number is the id. The virtual cluster is the user.
    """

    name = "philly"
    columns = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        timestamp, duration, num_gpus, cluster = table.positions(
            "timestamp", "duration", "num_gpus", "cluster"
        )
        first = table.earliest_date(timestamp)  # the file is not sorted
        for number, row, gpus in table.gpu_rows(num_gpus):
            job = Job(
                f"{number:06d}",
                (table.date(row, timestamp) - first).total_seconds(),
                gpus,
                user=row[cluster],
                may_span_nodes=gpus > 1,
            )
            yield Arrival(job, table.number(row, duration))
