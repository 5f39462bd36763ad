"""One job, in the panel beside the list: why it waits, when it starts, what would help; where it runs."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import Any

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.dashboard.answers import Answer
from gpu_flows.dashboard.questions import ask_process
from gpu_flows.dashboard.views.look import Look
from gpu_flows.dashboard.views.running import end_of
from gpu_flows.worker.status_text import place_devices

BUDGET_S, TIMEOUT_S = 6.0, 20.0  # of the simulations that tell what would help
KEEP_S = 15.0
LONGEST_ID = 64

_ATTEMPTS = """
select attempt, started, ended, coalesce(outcome, 'running') as outcome, run_s, nodes,
    coalesce(detail, '') as detail
from attempt_history where job_id = $job order by attempt
"""
_JOB = """
select name, user_name, gpus, job_history.outcome, coalesce(job_ends.detail, '') as detail, job_history.ended
from job_history left join job_ends using (job_id) where job_id = $job
"""


def values(look: Look) -> dict[str, Any] | None:
    """Return the values of the panel; None if no job is open."""
    job_id = look.get("job")
    if not job_id or len(job_id) > LONGEST_ID:
        return None
    snapshot = look.snapshot
    waiting = next((job for job in snapshot.waiting if job["id"] == job_id), None)
    running = next((job for job in snapshot.running if job["id"] == job_id), None)
    job = waiting or running
    ran_before = _count_earlier(waiting, running)
    return {
        "job_id": job_id,
        "job": job,
        "is_waiting": waiting is not None,
        "forecast": _ask_forecast(look, job_id) if waiting and snapshot.absence() == ("", "") else None,
        "attempts": _ask_warehouse(look, "attempts", _ATTEMPTS, job_id) if ran_before or not job else None,
        "past": _ask_warehouse(look, "job", _JOB, job_id) if not job else None,
        "url": look.sources.settings.run_url(job_id),
        "close": look.link(job=""),
        "end": end_of(running, snapshot.now) if running else (None, None),
        "on": place_devices(running["devices"], snapshot.devices) if running else "",
        "seconds": _seconds,
    }


def _count_earlier(waiting: dict[str, Any] | None, running: dict[str, Any] | None) -> int:
    """Return how many attempts the job has had before."""
    if running:
        return int(running["attempt"]) - 1
    return int(waiting["attempts"]) if waiting else 0


def _seconds(time: datetime | None) -> float | None:
    return time.timestamp() if time else None


def _ask_forecast(look: Look, job_id: str) -> Answer:
    watch = look.sources.watch
    question = {"ask": "job", "state": str(watch.folder), "job": job_id, "budget_s": BUDGET_S}
    return look.sources.forecasts.ask(("job", job_id), lambda: ask_process(question, TIMEOUT_S), KEEP_S)


def _ask_warehouse(look: Look, what: str, sql: str, job_id: str) -> Answer:
    ask = partial(run_query, look.sources.settings.database, sql, {"job": job_id}, timeout_s=TIMEOUT_S)
    return look.sources.queries.ask((what, job_id), lambda: asyncio.to_thread(ask), KEEP_S)
