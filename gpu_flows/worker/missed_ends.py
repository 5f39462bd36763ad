"""Records the ends of jobs that ended while no worker served their pool.

Only the server knows of them. In the history, a job that was cancelled then would wait or be
suspended forever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from prefect.client.schemas.objects import FlowRun

from gpu_flows.analytics.facts import JobEnded
from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.prefect_api.due_runs import DueRuns

UNFINISHED = "select job_id from job_history where pool = $pool and state in ('waiting', 'suspended')"


async def record_missed_ends(
    database: Path,
    pool: str,
    runs: DueRuns,
    is_executing: Callable[[str], bool],
    record: Callable[..., None],
    log: logging.Logger,
) -> None:
    """Record the end of every job that has not ended according to the history, but whose run has."""
    try:
        found = await asyncio.to_thread(run_query, database, UNFINISHED, {"pool": pool})
    except QueryError as error:
        log.warning("The history was not compared with the server: %s", error)
        return
    unfinished = [job_id for (job_id,) in found.rows]
    on_server = {str(run.id): run for run in await runs.find_in_any_state(map(UUID, unfinished))}
    for job_id in unfinished:
        if not is_executing(job_id) and (end := _describe_end(job_id, on_server.get(job_id))):
            record(end)


def _describe_end(job_id: str, run: FlowRun | None) -> JobEnded | None:
    if run is None:
        return JobEnded(job_id, time.time(), "cancelled", "the run was deleted or moved to another pool")
    if run.state is None or not run.state.is_final():
        return None
    outcome = "refused" if run.state.name == "Refused" else run.state.type.value.lower()
    return JobEnded(job_id, run.state.timestamp.timestamp(), outcome, run.state.message or "")
