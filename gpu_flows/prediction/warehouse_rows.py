"""Reads from the warehouse what predictors learn from: ended jobs with their features, times and peaks, and
attempts with the devices that they shared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.schedulers.prediction.colocated_runs import Run
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.run_parameters import flatten
from gpu_flows.schedulers.prediction.work_amount import Work, find_work

MOST_JOBS = 50_000  # the latest
MOST_RUNS = 20_000  # the latest
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ran and ended."""

    job_id: str
    features: JobFeatures
    gpu_model: str  # of its devices in its last attempt; empty if not recorded
    gpus: int
    is_complete: bool
    seconds: float  # on its devices, over all attempts
    peak_mib: float | None  # on the device where it used most
    ended: float
    device_mib: float = 0.0  # memory of such a device; 0 if not recorded


def read_ended_jobs(database: Path) -> list[EndedJob]:
    """Return the jobs in the order of their ends. Raises QueryError.

    Jobs of experiments are left out, unless they were real ones, whose features are recorded.
    """
    found = run_query(database, _ENDED_JOBS, {"most": MOST_JOBS}, timeout_s=TIMEOUT_S)
    jobs = [_read(dict(zip(found.columns, row, strict=True))) for row in found.rows]
    return sorted(jobs, key=lambda job: job.ended)


def _read(row: Mapping[str, Any]) -> EndedJob:
    features = JobFeatures(
        flow=row["flow"] or "",
        deployment=row["deployment"] or "",
        user=row["user_name"] or "",
        gpus=row["gpus"],
        parameters=_read_parameters(row["parameters"]),
    )
    return EndedJob(
        job_id=row["job_id"],
        features=features,
        gpu_model=row["gpu_model"] or "",
        gpus=row["gpus"],
        is_complete=row["outcome"] == "completed",
        seconds=float(row["run_s"]),
        peak_mib=row["peak_mb"],
        ended=float(row["ended"]),
        device_mib=float(row["device_mb"] or 0.0),
    )


def _read_parameters(text: str | None) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def read_runs(database: Path) -> list[Run]:
    """Return the attempts on devices, from which `learn_from_runs` finds those that shared them. Raises
    QueryError. An attempt that still runs is there until the last fact of its pool."""
    found = run_query(database, _RUNS, {"most": MOST_RUNS}, timeout_s=TIMEOUT_S)
    return [_read_run(dict(zip(found.columns, row, strict=True))) for row in found.rows]


def _read_run(row: Mapping[str, Any]) -> Run:
    # without an amount of work, only runs with the same parameters did the same
    work = find_work(flatten(_read_parameters(row["parameters"]))) or Work(row["parameters"] or "", 1.0)
    return Run(
        kind=row["kind"],
        model=row["gpu_model"],
        devices=frozenset(row["device_ids"]),
        started=float(row["started"]),
        ended=float(row["until"]),
        unit=work.unit,
        amount=work.amount,
        is_whole=row["is_whole"],
    )


_ENDED_JOBS = """
with used as (
    select
        job_id,
        arg_max(model, (attempt, device_id)) as gpu_model,
        arg_max(device_home.memory_mb, (attempt, device_id)) as device_mb
    from allocations join device_home using (device_id)
    group by job_id
),
peaks as (select job_id, max(peak_mb) as peak_mb from memory_peaks group by job_id)
select
    job_id,
    flow,
    deployment,
    user_name,
    gpus,
    parameters,
    gpu_model,
    device_mb,
    outcome,
    run_s,
    peak_mb,
    epoch_us(ended) / 1e6 as ended
from job_history
left join job_features using (job_id)
left join used using (job_id)
left join peaks using (job_id)
where state = 'ended' and attempts > 0 and gpus > 0
    and (experiment = '' or job_features.job_id is not null)
order by job_history.ended desc, job_id
limit cast($most as bigint)
"""

_RUNS = """
with held as (
    select
        job_id,
        attempt,
        list(device_id order by device_id) as device_ids,
        coalesce(min(model), '') as gpu_model,
        count(distinct model) as gpu_models
    from allocations left join device_home using (device_id)
    group by job_id, attempt
)
select
    coalesce(nullif(job_features.kind, ''), jobs.flow, '') as kind,
    gpu_model,
    device_ids,
    epoch_us(attempt_history.started) / 1e6 as started,
    epoch_us(greatest(attempt_history.started, until)) / 1e6 as until,
    job_features.parameters,
    coalesce(
        outcome = 'completed'
        and count(*) over (partition by job_id) = 1
        and gpu_models = 1
        and job_features.job_id is not null,
        false
    ) as is_whole
from attempt_history
join held using (job_id, attempt)
left join jobs using (job_id)
left join job_features using (job_id)
where attempt_history.experiment = '' or job_features.job_id is not null
order by attempt_history.started desc, job_id, attempt
limit cast($most as bigint)
"""
