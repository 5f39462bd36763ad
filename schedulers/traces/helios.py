"""SenseTime's Helios clusters (SC 2021): `cluster_log.csv` of Earth, Saturn, Uranus and Venus."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.format import Format
from gpu_flows.schedulers.traces.table import Table
from gpu_flows.schedulers.workload import Arrival


class Helios(Format):
    """SenseTime Helios 2020: cluster_log.csv with gpu_num, cpu_num, node_num, state and dates.

    A job that ran on one node may not span nodes; cpu_num is divided evenly among its nodes.
    """

    name = "helios"
    columns = (
        *("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num"),
        *("state", "submit_time", "start_time", "end_time", "duration", "queue"),
    )

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        job_id, user, gpu_num, cpu_num, node_num = table.positions(
            "job_id", "user", "gpu_num", "cpu_num", "node_num"
        )
        submit_time, duration = table.positions("submit_time", "duration")
        first = table.earliest_date(submit_time)
        for _, row, gpus in table.gpu_rows(gpu_num):
            nodes = table.integer(row, node_num)
            job = Job(
                table.text(row, job_id),
                (table.date(row, submit_time) - first).total_seconds(),
                gpus,
                user=row[user],
                may_span_nodes=nodes > 1,
                cpus=table.number(row, cpu_num) / max(1, nodes),
            )
            yield Arrival(job, table.number(row, duration))
