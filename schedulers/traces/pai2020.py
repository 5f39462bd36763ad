"""Alibaba's 2020 PAI trace (NSDI 2022) as published: `pai_task_table.csv`, without a header.

A row is one role of a job (worker, evaluator, ...) with its instances. PAI launches roles one by
one, each with devices of its own, so each role that asks for GPUs becomes a job named JOB/ROLE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.format import Format, FormatOptions
from gpu_flows.schedulers.traces.pai import gpus_and_units
from gpu_flows.schedulers.traces.table import NO_GPU, Table, first_row, is_number
from gpu_flows.schedulers.workload import Arrival

_JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")


class Pai2020Options(FormatOptions):
    job_table: Path | None = None
    """The path of pai_job_table.csv, which adds the users and the submit times. Without it a job is
    submitted when it starts."""


class Pai2020(Format):
    """Alibaba PAI 2020 (pai_task_table.csv): instances with percentages of GPUs, CPU and RAM.

    Rows without a start or an end (or with 0) are left out: they still wait or run. The recorded
    gpu_type is what a job got, not what it asked for, so a job accepts any model.
    """

    name = "pai2020"
    columns = (
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    )
    Options = Pai2020Options
    options: Pai2020Options

    @classmethod
    def column_names(cls, first_row: list[str]) -> Sequence[str] | None:
        if len(first_row) == len(cls.columns) and is_number(first_row[cls.columns.index("inst_num")]):
            return cls.columns
        return super().column_names(first_row)

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        job_name, role, inst_num, _, start_time, end_time, plan_cpu, plan_mem, plan_gpu, _ = table.positions(
            *self.columns
        )
        submissions = _read_submissions(self.options.job_table) if self.options.job_table else {}
        for row in table:
            percent = _number_or_zero(table, row, plan_gpu)
            start, end = _number_or_zero(table, row, start_time), _number_or_zero(table, row, end_time)
            if not percent:
                table.skip(NO_GPU)
                continue
            if not start or not end or end < start:
                table.skip("has not started" if not start else "has not ended")
                continue
            instances = table.integer(row, inst_num, least=1)
            gpus, units = gpus_and_units(percent / 100, instances)
            user, since = submissions.get(row[job_name], ("", start))
            job = Job(
                f"{table.text(row, job_name)}/{table.text(row, role)}",
                since,
                gpus,
                units,
                user=user,
                kind=row[role],
                may_span_nodes=instances > 1,
                cpus=_number_or_zero(table, row, plan_cpu) / 100,
                ram_mb=round(1024 * _number_or_zero(table, row, plan_mem)),
            )
            yield Arrival(job, end - start, units / 10 if units else 100.0)


def _number_or_zero(table: Table, row: list[str], at: int) -> float:
    return table.number(row, at) if row[at] else 0.0


def _read_submissions(path: Path) -> dict[str, tuple[str, float]]:
    """Return the user and the submit time of each job."""
    first = first_row(path)
    has_header = set(_JOB_COLUMNS) <= set(first)
    table = Table(path, first if has_header else _JOB_COLUMNS, has_header=has_header)
    job_name, user, start_time = table.positions("job_name", "user", "start_time")
    return {row[job_name]: (row[user], table.number(row, start_time)) for row in table if row[start_time]}
