"""Alibaba's 2020 PAI trace (NSDI 2022) as published: `pai_task_table.csv`, which has no header.

A row is one role of a job (worker, evaluator, ...) with its instances. Roles are launched one by
one and hold devices of their own, so each that asks for GPUs is a job here, named JOB/ROLE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.pai import gpus_and_units
from gpu_flows.schedulers.traces.reading import Format, Options
from gpu_flows.schedulers.traces.table import Table, first_row, is_number
from gpu_flows.schedulers.workload import Arrival

_JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")


class Pai2020Options(Options):
    job_table: Path | None = Field(
        default=None,
        title="Job table",
        description="pai_job_table.csv: adds users, and when a job was submitted rather than launched.",
    )


class Pai2020(Format):
    """Alibaba PAI 2020 (pai_task_table.csv): instances with percentages of GPUs, CPU and RAM.

    Rows without a start or an end (0 is none) are still waiting or running and are left out. The
    recorded gpu_type is what a job got, not what it asked for, so it is no condition.
    """

    name = "pai2020"
    columns = (
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    )
    Options = Pai2020Options
    options: Pai2020Options

    @classmethod
    def names(cls, first: list[str]) -> Sequence[str] | None:
        if len(first) == len(cls.columns) and is_number(first[cls.columns.index("inst_num")]):
            return cls.columns
        return super().names(first)

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        job_name, role, inst_num, _, start_time, end_time, plan_cpu, plan_mem, plan_gpu, _ = table.at(
            *self.columns
        )
        submitted = _submissions(self.options.job_table) if self.options.job_table else {}
        for row in table:
            percent = _number(table, row, plan_gpu)
            start, end = _number(table, row, start_time), _number(table, row, end_time)
            if not percent:
                table.skip("asks for no GPU")
                continue
            if not start or not end or end < start:
                table.skip("has not started" if not start else "has not ended")
                continue
            instances = table.whole(row, inst_num, least=1)
            gpus, units = gpus_and_units(percent / 100, instances)
            user, since = submitted.get(row[job_name], ("", start))
            job = Job(
                f"{table.text(row, job_name)}/{table.text(row, role)}",
                since,
                gpus,
                units,
                user=user,
                kind=row[role],
                may_span_nodes=instances > 1,
                cpus=_number(table, row, plan_cpu) / 100,
                ram_mb=round(1024 * _number(table, row, plan_mem)),
            )
            yield Arrival(job, end - start, units / 10 if units else 100.0)


def _number(table: Table, row: list[str], at: int) -> float:
    """A number that may be missing."""
    return table.number(row, at) if row[at] else 0.0


def _submissions(path: Path) -> dict[str, tuple[str, float]]:
    """job -> its user and when it was submitted."""
    first = first_row(path)
    headed = set(_JOB_COLUMNS) <= set(first)
    table = Table(path, first if headed else _JOB_COLUMNS, headed=headed)
    job_name, user, start_time = table.at("job_name", "user", "start_time")
    return {row[job_name]: (row[user], table.number(row, start_time)) for row in table if row[start_time]}
