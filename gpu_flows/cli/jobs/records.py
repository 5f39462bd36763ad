"""What the warehouse recorded about jobs: when they waited and ran, on which devices, and how they ended."""

from __future__ import annotations

from typing import Any

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.worker.status_text import format_places

_PLACES = """
places as (
    select job_id, attempt, list([node, coalesce(index::varchar, device_id)] order by node, index) as places
    from allocations
    left join (select device_id, any_value(index) as index from devices group by device_id) using (device_id)
    group by job_id, attempt
)
"""
_HISTORY = f"""
with {_PLACES},
declines as (select job_id, count(*) as declined_offers from offers where not accepted group by job_id)
select
    job_id,
    name,
    user_name,
    coalesce(outcome, state) as state,
    gpus,
    submitted,
    first_started as started,
    ended,
    waited_s,
    run_s as ran_s,
    attempts,
    policy,
    tier,
    coalesce(declined_offers, 0) as declined_offers,
    places
from job_history
left join (select job_id, attempt as attempts, places from places) using (job_id, attempts)
left join (select job_id, attempt as attempts, tier from attempt_tiers) using (job_id, attempts)
left join declines using (job_id)
where pool = $pool
    and ($user = '' or user_name = $user)
    and ($state = '' or coalesce(outcome, state) = $state or state = $state)
    and submitted >= to_timestamp($since)
order by coalesce(ended, now()) desc, submitted desc
limit $limit
"""
_JOB = f"""
with {_PLACES},
latest as (
    select quantity, arg_max(value, time) as value, arg_max(upper, time) as upper, arg_max(how, time) as how
    from predictions where job_id = $job group by quantity
),
needs as (select list(latest) as needs from latest),
peak as (select max(peak_mb) as peak_gpu_memory_mb from memory_peaks where job_id = $job),
offered as (
    select
        count(*) filter (where not accepted) as declined_offers,
        max_by({{'tier': tier, 'accepted': accepted, 'waited_s': waited_s, 'patience_s': patience_s,
            'slowdown': slowdown, 'sensitivity': sensitivity}}, time) as offer
    from offers where job_id = $job
),
told as (
    select list({{'quantity': quantity, 'made': made, 'p50_error_s': p50_error_s, 'p90_error_s': p90_error_s,
        'covered': covered}}) as forecasts
    from (
        select * from eta_errors where job_id = $job and happened is not null
        qualify row_number() over (partition by quantity order by made) = 1
    )
)
select
    job_history.outcome as job_outcome,
    job_history.waited_s,
    job_history.run_s as ran_s,
    last_ends.detail as job_detail,
    attempt_history.attempt,
    attempt_history.outcome,
    exit_code,
    from_json(attempt_history.nodes, '["VARCHAR"]') as nodes,
    attempt_history.gpus,
    attempt_history.policy,
    started,
    attempt_history.ended,
    attempt_history.run_s,
    lost_s,
    attempt_history.detail,
    attempt_tiers.tier,
    places,
    needs,
    peak_gpu_memory_mb,
    declined_offers,
    offer,
    forecasts
from job_history
cross join needs
cross join peak
cross join offered
cross join told
left join last_ends using (job_id)
left join attempt_history using (job_id)
left join saved_work using (job_id, attempt)
left join attempt_tiers using (job_id, attempt)
left join places using (job_id, attempt)
where job_id = $job
order by attempt
"""
_OF_JOB = {
    *("job_outcome", "job_detail", "waited_s", "ran_s", "places", "needs", "peak_gpu_memory_mb"),
    *("declined_offers", "offer", "forecasts"),
}
STATES = (
    "waiting",
    "running",
    "suspended",
    "ended",
    "completed",
    "failed",
    "crashed",
    "cancelled",
    "refused",
)


def read_history(pool: str, user: str, state: str, since: float, limit: int) -> list[dict[str, Any]]:
    """The pool's jobs, the newest end first. Raises QueryError if the warehouse cannot be read."""
    values = {"pool": pool, "user": user, "state": state, "since": since, "limit": limit}
    return [{**job, "devices": _describe_places(job.pop("places"))} for job in _query(pool, _HISTORY, values)]


def read_record(pool: str, job_id: str) -> dict[str, Any]:
    """What is recorded about one job; empty if nothing is, or if the warehouse cannot be read here."""
    try:
        rows = _query(pool, _JOB, {"job": job_id}, timeout_s=5)
    except QueryError:
        return {}
    if not rows:
        return {}
    attempts = [_describe_attempt(row) for row in rows if row["attempt"] is not None]
    first = rows[0]
    units = {"memory_mb": "MiB", "seconds": "s"}
    needs = {
        (quantity := need.pop("quantity")): {**need, "unit": units[quantity]} for need in first["needs"] or []
    }
    return {
        "outcome": first["job_outcome"],
        "detail": first["job_detail"],
        "waited_s": first["waited_s"],
        "ran_s": first["ran_s"],
        "attempts": attempts,
        "memory": needs.get("memory_mb"),
        "time": needs.get("seconds"),
        "peak_gpu_memory_mb": first["peak_gpu_memory_mb"],
        "declined_offers": first["declined_offers"],
        "offer": first["offer"],
        "forecasts": first["forecasts"],
    }


def _describe_attempt(row: dict[str, Any]) -> dict[str, Any]:
    attempt = {name: value for name, value in row.items() if name not in _OF_JOB}
    return {**attempt, "devices": _describe_places(row["places"])}


def _describe_places(places: list[list[str]] | None) -> str:
    return format_places((node, index) for node, index in places or [])


def _query(pool: str, sql: str, values: dict[str, object], timeout_s: float = 30) -> list[dict[str, Any]]:
    found = run_query(find_warehouse(pool), sql, values, timeout_s=timeout_s)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]
