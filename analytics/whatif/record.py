"""What a warehouse knows of a pool in a period: its jobs with their attempts, its devices and its policies.

A job *counts* if it belongs to the period, or to the experiment. The jobs that were there at the same time
are part of the record too, because the counted ones competed with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from gpu_flows.analytics.query_runner import QueryError, QueryResult, run_query
from gpu_flows.analytics.recorded_cluster import ALL_NODES, build_nodes
from gpu_flows.analytics.recorded_pools import NotOnePool, find_only_pool
from gpu_flows.analytics.simulated_facts import RUNTIME
from gpu_flows.schedulers.model import Job, Node
from gpu_flows.schedulers.protection import Protection

STOPPED = ("preempted", "moved", "resized")  # outcomes of attempts that a policy has ended


class NoRecord(ValueError):
    """There is nothing to replay. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One launch of a job. Times are seconds since the epoch."""

    number: int
    planned: float
    started: float
    until: float  # its end, or the last fact
    is_open: bool  # its end is not recorded
    released: float | None  # when its devices were free
    outcome: str
    policy: str
    runtime: str
    devices: tuple[str, ...]
    requested: float | None  # when a policy asked it to stop
    requeued: float | None  # when that was reported
    restored: float | None  # when it had loaded its checkpoint
    lost_s: float  # time whose work was not saved
    freed_for: tuple[str, ...]  # the jobs that got its devices


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What the output of a job told of its progress."""

    attempt: int
    time: float
    remaining_s: float


@dataclass(frozen=True, slots=True)
class RecordedJob:
    job: Job  # as its policy knew it
    counts: bool
    queued: float | None  # None: not recorded
    is_complete: bool  # whether everything that it asked for is recorded
    ended: float | None
    ran_after_end: bool  # somebody ran it again after it had ended
    outcome: str
    attempts: tuple[RecordedAttempt, ...]
    reports: tuple[ProgressReport, ...] = ()  # in order of time

    @property
    def has_run(self) -> bool:
        """Whether it ran on devices and has ended."""
        return self.ended is not None and bool(self.attempts) and self.job.gpus > 0

    @property
    def entered(self) -> float:
        """When it entered the queue, as far as it is known."""
        return self.job.submitted if self.queued is None else max(self.queued, self.job.submitted)


@dataclass(frozen=True, slots=True)
class PolicyPeriod:
    """From this time on, this policy decided."""

    since: float
    label: str
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The policy's name; a simulation records it with its options."""
        return self.label.partition(":")[0]


@dataclass(frozen=True, slots=True)
class PoolRecord:
    pool: str
    began: float  # the first submission that counts
    until: float  # the last end that counts, or the last fact
    jobs: Sequence[RecordedJob]
    nodes: Sequence[Node]
    available: Mapping[str, Sequence[tuple[float, float]]]  # device id -> when it could be used
    policies: Sequence[PolicyPeriod]
    protections: Sequence[tuple[float, Protection]]
    interruptions: Sequence[Mapping[str, Any]] = field(repr=False, default=())  # of the pool, at any time

    @property
    def counted(self) -> list[RecordedJob]:
        return [each for each in self.jobs if each.counts]

    @property
    def is_live(self) -> bool:
        """Whether jobs really ran, and were not simulated."""
        return any(attempt.runtime != RUNTIME for each in self.jobs for attempt in each.attempts)


def read_record(
    database: Path, pool: str = "", since: float = 0.0, until: float = inf, experiment: str = ""
) -> PoolRecord:
    """Read the record of the jobs that were submitted in this time. Raises NoRecord."""
    try:
        pool = pool or find_only_pool(database, experiment)
        period = {"pool": pool, "since": since, "until": min(until, 9e11), "experiment": experiment}
        with ThreadPoolExecutor() as threads:  # each query is a process
            asked = (_JOBS, period), (_POOL, {"pool": pool})
            jobs, (known,) = threads.map(lambda each: _list_rows(run_query(database, *each)), asked)
    except QueryError as error:
        raise NoRecord(_explain(error, database)) from None
    except NotOnePool as error:
        raise NoRecord(str(error)) from None
    if not any(row["counts"] for row in jobs):
        raise NoRecord(f"Pool {pool!r} of {database} has no job that was submitted in this time.")
    recorded = [_build_job(row) for row in jobs]
    counted = [each for each in recorded if each.counts]
    return PoolRecord(
        pool,
        min(each.job.submitted for each in counted),
        max(jobs[0]["horizon"], max(each.entered for each in counted)),
        recorded,
        build_nodes(known["devices"] or ()),
        _group(known["available"] or ()),
        _list_policies(known["policies"] or (), jobs),
        [(row.pop("time"), Protection(**row)) for row in known["protections"] or ()],
        known["interruptions"] or (),
    )


def _explain(error: QueryError, database: Path) -> str:
    if "job_requests" in str(error) or "protections" in str(error):
        return (
            f"Warehouse {database} is of an older gpu-flows, which did not record what jobs ask for. A worker"
            " or `gpu-flows simulate --warehouse` brings it up to date."
        )
    return f"Warehouse {database} cannot be read: {error}"


def _list_rows(found: QueryResult) -> list[dict[str, Any]]:
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def _build_job(row: Mapping[str, Any]) -> RecordedJob:
    names = (
        *("submitted", "gpus", "memory_mb", "name", "user", "kind", "queue_priority", "priority", "deadline"),
        *(
            "expected_s",
            "one_node",
            "may_span_nodes",
            "min_gpus",
            "max_gpus",
            "preemptible",
            "cpus",
            "ram_mb",
        ),
    )
    request: dict[str, Any] = {name: row[name] for name in names}
    request |= {name: tuple(json.loads(row[name])) for name in ("nodes", "models", "predicted")}
    return RecordedJob(
        Job(row["job_id"], **request),
        row["counts"],
        row["queued"],
        row["is_complete"],
        row["ended"],
        row["ran_after_end"],
        row["outcome"] or "",
        tuple(_build_attempt(each) for each in row["attempts"] or ()),
        tuple(ProgressReport(**each) for each in row["reports"] or ()),
    )


def _build_attempt(row: Mapping[str, Any]) -> RecordedAttempt:
    lists = {"devices": tuple(row["devices"] or ()), "freed_for": tuple(json.loads(row["freed_for"]))}
    return RecordedAttempt(**{**row, **lists})


def _group(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        spans.setdefault(row["device_id"], []).append((row["since"], row["until"]))
    return spans


def _list_policies(
    swaps: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]]
) -> list[PolicyPeriod]:
    """Return the policies in order. Without any recorded choice, it is the policy of the first attempt."""
    chosen = [
        PolicyPeriod(row["time"], row["to_policy"], json.loads(row["options"] or "{}")) for row in swaps
    ]
    attempts = [attempt for row in jobs for attempt in row["attempts"] or ()]
    if chosen or not attempts:
        return chosen
    first = min(attempts, key=lambda attempt: attempt["started"])
    return [PolicyPeriod(first["planned"], first["policy"].removesuffix(" (failed)"), {})]


# The jobs that count, and those that were in the pool between their first submission and their last end.
_JOBS = """
with pool_jobs as (
    select
        jobs.*, last_ends.ended, last_ends.outcome, last_fact,
        $experiment in ('', experiment)
            and submitted >= to_timestamp($since) and submitted < to_timestamp($until) as counts
    from jobs left join last_ends using (job_id) left join pool_clock using (pool)
    where pool = $pool
),
period as (
    select min(submitted) as began, max(coalesce(ended, last_fact)) as horizon from pool_jobs where counts
),
mine as (
    from pool_jobs, period where counts or (submitted <= horizon and (ended is null or ended > began))
),
held as (
    select job_id, attempt, list(device_id order by device_id) as devices
    from allocations group by job_id, attempt
),
launched as (
    select
        job_id,
        list({
            'number': attempt,
            'planned': epoch_us(planned) / 1e6,
            'started': epoch_us(started) / 1e6,
            'until': epoch_us(greatest(started, until)) / 1e6,
            'is_open': is_open,
            'released': epoch_us(attempt_ends.released) / 1e6,
            'outcome': coalesce(attempt_ends.outcome, ''),
            'policy': attempts.policy,
            'runtime': attempts.runtime,
            'devices': devices,
            'requested': epoch_us(requested) / 1e6,
            'requeued': epoch_us(requeued) / 1e6,
            'restored': epoch_us(restored) / 1e6,
            'lost_s': coalesce(lost_s, 0),
            'freed_for': coalesce(freed_for, '[]')
        } order by attempt) as attempts
    from attempts
    semi join mine using (job_id)
    join attempt_spans using (job_id, attempt)
    left join attempt_ends using (job_id, attempt)
    left join interruptions using (job_id, attempt)
    left join saved_work using (job_id, attempt)
    left join held using (job_id, attempt)
    group by job_id
),
run_again as (
    select job_id from job_ends join attempts using (job_id) where attempts.started > job_ends.ended
),
told as (
    select job_id, arg_min(value, time) as seconds
    from predictions where quantity = 'seconds' and how <> 'progress' group by job_id
),
reported as (
    select
        job_id,
        list({
            'attempt': attempt, 'time': epoch_us(time) / 1e6, 'remaining_s': remaining_s
        } order by time) as reports
    from progress_reports
    semi join mine using (job_id)
    group by job_id
)
select
    mine.job_id,
    counts,
    epoch_us(horizon) / 1e6 as horizon,
    epoch_us(submitted) / 1e6 as submitted,
    epoch_us(queued) / 1e6 as queued,
    epoch_us(ended) / 1e6 as ended,
    job_id in (from run_again) as ran_after_end,
    outcome,
    job_requests.job_id is not null as is_complete,
    gpus,
    name,
    user_name as user,
    priority,
    epoch_us(deadline) / 1e6 as deadline,
    coalesce(job_requests.memory_mb, gpu_memory_mb) as memory_mb,
    coalesce(nullif(job_requests.kind, ''), nullif(deployment, ''), flow) as kind,
    coalesce(queue_priority, 0) as queue_priority,
    coalesce(job_requests.expected_s, mine.expected_s, told.seconds) as expected_s,
    coalesce(job_requests.nodes, '[]') as nodes,
    coalesce(job_requests.models, '[]') as models,
    coalesce(predicted, '[]') as predicted,
    coalesce(may_span_nodes, len(attempts) > 0 and len(attempts[1].devices) > 1) as may_span_nodes,
    coalesce(one_node, '') as one_node,
    coalesce(min_gpus, 0) as min_gpus,
    coalesce(max_gpus, 0) as max_gpus,
    coalesce(preemptible, true) as preemptible,
    coalesce(cpus, 0) as cpus,
    coalesce(ram_mb, 0) as ram_mb,
    attempts,
    reports
from mine
left join job_requests using (job_id)
left join launched using (job_id)
left join told using (job_id)
left join reported using (job_id)
order by submitted, mine.job_id
"""
# Everything else, as lists in one row: each query is a process.
_POOL = f"""
with described as ({ALL_NODES}),
available as (
    select device_id, epoch_us(since) / 1e6 as since, epoch_us(until) / 1e6 as until
    from device_available where pool = $pool
),
policies as (
    select epoch_us(time) / 1e6 as time, to_policy, options, rowid as position
    from swaps where pool = $pool and coalesce(error, '') = ''
),
protected as (
    select epoch_us(time) / 1e6 as time, min_run_seconds, most_preemptions from protections where pool = $pool
),
stops as (
    select
        seconds(interruptions.requested, coalesce(attempt_ends.released, interruptions.released)) as stop_s,
        seconds(coalesce(attempt_ends.released, interruptions.released), requeued) as report_s,
        lost_s,
        restart_s,
        is_migration
    from preemptions
    join interruptions using (job_id, attempt)
    left join attempt_ends using (job_id, attempt)
    where pool = $pool and preemptions.outcome in ('preempted', 'moved', 'resized')
)
select
    (select list(d order by d.position nulls last, d.node, d.index) from described as d) as devices,
    (select list(span order by span.since) from available as span) as available,
    (select list(swap order by swap.time, swap.position) from policies as swap) as policies,
    (select list(p order by p.time) from protected as p) as protections,
    (select list(stop) from stops as stop) as interruptions
"""
