"""The numbers and the tables of the report."""

from __future__ import annotations

from typing import Any

from gpu_flows.analytics.figures.chart import Scope
from gpu_flows.analytics.figures.gpu_hours import GPU_HOURS
from gpu_flows.analytics.figures.theme import format_duration
from gpu_flows.analytics.pages import Number, Table


def read_numbers(scope: Scope) -> tuple[list[Number], dict[str, Any]]:
    """Return the numbers as they are shown, and as they were read. Raises QueryError."""
    found = scope.ask(NUMBERS)
    read: dict[str, Any] = dict(zip(found.columns, found.rows[0], strict=True))
    jobs = [
        Number("Jobs submitted", f"{read['submitted']:,}"),
        Number(
            "Completed",
            f"{read['completed']:,}",
            _share(read["completed"], read["ended"], "of those that ended"),
        ),
        Number("Failed", f"{read['failed']:,}", _share(read["failed"], read["ended"], "of those that ended")),
        Number("Waiting", f"{read['waiting']:,}", "at the end"),
        Number("Running", f"{read['running']:,}", "at the end"),
        Number("Times stopped for others", f"{read['stops']:,}"),
    ]
    times = [
        Number(
            "Mean turnaround",
            _duration(read["avg_turnaround_s"]),
            f"p90 {_duration(read['p90_turnaround_s'])}",
        ),
        Number("Mean wait", _duration(read["avg_queueing_s"]), f"p90 {_duration(read['p90_queueing_s'])}"),
    ]
    use = [
        Number(
            "GPU-hours held",
            f"{read['gpu_hours']:,.4g}",
            _share(read["held_s"], read["available_s"], "of all"),
        ),
        Number(
            "Devices", f"{read['devices']:,}", f"on {read['nodes']:,} node{'s' if read['nodes'] != 1 else ''}"
        ),
    ]
    return [*jobs, *times, *use], read


def read_table(scope: Scope, title: str, meaning: str, sql: str, when_empty: str) -> Table:
    """Return a table of TABLES. Raises QueryError."""
    found = scope.ask(sql)
    return Table(title, found.columns, found.rows, when_empty, meaning)


def _share(part: float | None, whole: float | None, of_what: str) -> str:
    return f"{part / whole:.0%} {of_what}" if part and whole else ""


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else format_duration(round(seconds, 1))


# A job counts as ended in the time in which it ended, and as submitted in that in which it was.
NUMBERS = f"""
-- How did the pool do?
with history as materialized (from job_history where pool = $pool),
ended as (from history where ended > $since and ended <= $until),
available as (
    select sum(shared_seconds(since, until, $since, $until)) as available_s
    from device_available where pool = $pool
),
busy as (
    select sum(shared_seconds(since, until, $since, $until)) as held_s from device_busy where pool = $pool
)
select
    (select count(*) from history where submitted between $since and $until) as submitted,
    (select count(*) from ended) as ended,
    (select count(*) from ended where outcome = 'completed') as completed,
    (select count(*) from ended where outcome in ('failed', 'crashed', 'refused')) as failed,
    (select count(*) from history where state = 'waiting') as waiting,
    (select count(*) from history where state = 'running') as running,
    (
        select count(*) from attempt_history
        where pool = $pool and ended between $since and $until
            and outcome in ('preempted', 'moved', 'resized')
    ) as stops,
    (select avg(turnaround_s) from ended where attempts > 0) as avg_turnaround_s,
    (select quantile_cont(turnaround_s, 0.9) from ended where attempts > 0) as p90_turnaround_s,
    (select avg(queueing_s) from ended where attempts > 0) as avg_queueing_s,
    (select quantile_cont(queueing_s, 0.9) from ended where attempts > 0) as p90_queueing_s,
    coalesce((select sum(gpu_hours) from ({GPU_HOURS})), 0) as gpu_hours,
    held_s,
    available_s,
    (select count(*) from devices where pool = $pool) as devices,
    (select count(distinct node) from devices where pool = $pool) as nodes
from available, busy
"""

_POLICIES = """
-- How do the policies compare?
select policy, count(*) as jobs, count(*) filter (where outcome = 'completed') as completed,
    sum(attempts) - count(*) as restarts, avg(turnaround_s) as avg_turnaround_s,
    quantile_cont(turnaround_s, 0.5) as p50_turnaround_s,
    quantile_cont(turnaround_s, 0.9) as p90_turnaround_s,
    avg(queueing_s) as avg_queueing_s, coalesce(sum(gpu_hours), 0) as gpu_hours
from job_history left join (select job_id, gpu_hours from job_gpu_hours where pool = $pool) using (job_id)
where pool = $pool and ended > $since and ended <= $until and attempts > 0
group by policy
order by avg_turnaround_s
"""
_USERS = f"""
-- Who used the devices, and who waited?
with held as ({GPU_HOURS})
select user_name, count(*) as jobs, count(*) filter (where outcome = 'completed') as completed,
    count(*) filter (where state = 'waiting') as waiting,
    count(*) filter (where state = 'running') as running, coalesce(any_value(gpu_hours), 0) as gpu_hours,
    avg(turnaround_s) filter (where attempts > 0) as avg_turnaround_s,
    avg(queueing_s) filter (where attempts > 0) as avg_queueing_s
from (select * replace (coalesce(nullif(user_name, ''), 'no user') as user_name) from job_history)
left join (select user_name, gpu_hours from held) using (user_name)
where pool = $pool and submitted <= $until and coalesce(ended, $until) > $since
group by user_name
order by gpu_hours desc, user_name
limit 50
"""
_FAILURES = """
-- What failed lately?
select time, name, user_name, attempt, nodes, outcome, exit_code, detail
from failures
where pool = $pool and time > $since and time <= $until
order by time desc
limit 20
"""
_WAITS = """
-- Which jobs waited longest?
select name, user_name, gpus, state, submitted, waited_s, policy
from job_history
where pool = $pool and submitted <= $until and coalesce(ended, $until) > $since
order by waited_s desc
limit 20
"""
TABLES = [
    (
        "Policies compared",
        "Jobs that ended in this time, by the policy that started their last attempt.",
        _POLICIES,
        "No job that ran has ended in this time.",
    ),
    ("Users", "Jobs that waited, ran or ended in this time.", _USERS, "No job was submitted in this time."),
    ("Failures", "The latest first.", _FAILURES, "Nothing failed in this time."),
    ("Longest waits", "Also those of jobs that still wait.", _WAITS, "No job was submitted in this time."),
]
