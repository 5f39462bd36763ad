"""`gpu-flows history`: the jobs of a pool, also those that have ended."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from gpu_flows.analytics.query_runner import QueryError, QueryResult
from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.jobs.acceptance import is_refused
from gpu_flows.cli.jobs.pool_jobs import (
    RunDescriber,
    advise_to_serve,
    describe_absence,
    parse_time,
    to_iso,
)
from gpu_flows.cli.jobs.records import STATES, read_history
from gpu_flows.cli.jobs.runs import is_suspended, shorten
from gpu_flows.cli.jobs.tables import draw_jobs
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.cli.sql import write_csv
from gpu_flows.common.quantities import parse_duration
from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.prefect_api.conventions import FINAL_STATES, PAGE
from gpu_flows.worker.status import read_status
from gpu_flows.worker.status_text import LATE_S

_COLUMNS = (
    *("job_id", "name", "user_name", "state", "gpus", "submitted", "started", "ended"),
    *("waited_s", "ran_s", "attempts", "policy", "tier", "declined_offers", "devices"),
)


@examples(
    "gpu-flows history",
    "gpu-flows history --user ada --state failed --since 2d",
    "gpu-flows history --limit 1000 --csv",
)
def history(
    user: Annotated[str, typer.Option(metavar="NAME", help="Only jobs of this user.")] = "",
    state: Annotated[
        str, typer.Option(metavar="STATE", help=f"Only jobs in a state: {', '.join(STATES)}.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only jobs submitted in the last 2d, 6h or 30m.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most N jobs.")] = 30,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """List jobs: how long they waited and ran, on which devices, and how they ended.

    Those that have not ended come first, then those that ended last.

    `waited` does not count the time on devices of a job that was preempted. The data comes from the
    warehouse; where it cannot be read, from the Prefect server, which does not know devices.
    `gpu-flows sql` answers other questions: its view job_history has all columns.
    """
    if as_json and as_csv:
        raise BadInput("--json and --csv exclude each other; choose one.")
    if state and state not in STATES:
        raise BadInput(f"--state {state!r} is none of {', '.join(STATES)}.", did_you_mean(state, STATES))
    earliest = _parse_since(since)
    try:
        jobs = read_history(pool, user, state, earliest, limit)
    except QueryError as error:
        output.print_remark(f"{error} The jobs are read from the Prefect server instead.")
        jobs = _read_from_server(PrefectClient(), pool, user, state, earliest, limit)
    if as_json:
        output.print_json(jobs)
    elif as_csv:
        write_csv(QueryResult(list(_COLUMNS), [tuple(job[name] for name in _COLUMNS) for job in jobs], False))
    elif jobs:
        _show(jobs)
    else:
        output.print_remark(f"Pool {pool!r} has no such job.")
    if any(job["ended"] is None for job in jobs) and not _is_served(pool):
        output.print_remark(
            f"{describe_absence(pool)} What happened since is not recorded: jobs may have ended meanwhile."
            f" {advise_to_serve(pool)}"
        )


def _is_served(pool: str) -> bool:
    """Whether a worker serves the pool. Without a server, none does."""
    status = read_status(pool)
    if status and time.time() - status.at < LATE_S:
        return True
    with suppress(CommandError):
        return bool(PrefectClient(timeout_s=3).list_workers(pool))
    return False


def _parse_since(text: str) -> float:
    if not text:
        return 0.0
    try:
        return time.time() - parse_duration(text)
    except ValueError as error:
        raise BadInput(f"--since: {error}.") from None


def _show(jobs: list[dict[str, Any]]) -> None:
    columns = ["id", "run", "user", "state", "submitted", "waited", "ran", "on"]
    rows = [
        [
            shorten(job["job_id"]),
            job["name"],
            job["user_name"],
            job["state"],
            f"{job['submitted'].astimezone():%m-%d %H:%M}",
            output.format_duration(job["waited_s"]),
            output.format_duration(job["ran_s"]),
            job["devices"],
        ]
        for job in jobs
    ]
    output.show(draw_jobs(columns, rows, right=("waited", "ran")))


# -- without a warehouse ----------------------------------------------------------------------


def _read_from_server(
    client: PrefectClient, pool: str, user: str, state: str, since: float, limit: int
) -> list[dict[str, Any]]:
    """The same rows from the server's runs, without devices and policies."""
    describer = RunDescriber(client, client.read_pool(pool))
    which = {"expected_start_time": {"after_": to_iso(since), "before_": to_iso(time.time())}}
    found: list[dict[str, Any]] = []
    for offset in range(0, 1_000_000, PAGE):
        body = {"flow_runs": which, "work_pools": {"name": {"any_": [pool]}}, "limit": PAGE, "offset": offset}
        page = client.post("/flow_runs/filter", {**body, "sort": "EXPECTED_START_TIME_DESC"})
        describer.load_deployments(page)
        jobs = [_describe_run(run, describer) for run in page]
        found += [
            job
            for job in jobs
            if (not user or job["user_name"] == user) and (not state or state in (job["state"], job["phase"]))
        ]
        if len(page) < PAGE or len(found) >= limit:
            break
    return [{name: job[name] for name in _COLUMNS} for job in found[:limit]]


def _describe_run(run: dict[str, Any], describer: RunDescriber) -> dict[str, Any]:
    job = describer.describe(run)
    ended, ran_s = parse_time(run.get("end_time")), float(run.get("total_run_time") or 0.0)
    final = run["state_type"] in FINAL_STATES
    phase = "ended" if final else "waiting" if run["state_type"] == "SCHEDULED" else "running"
    phase = "suspended" if is_suspended(run) else phase
    state = "refused" if is_refused(run) else run["state_type"].lower() if final else phase
    return {
        "job_id": run["id"],
        "name": run["name"],
        "user_name": job["user"],
        "state": state,
        "phase": phase,
        "gpus": job["gpus"],
        "submitted": _to_datetime(job["submitted"]),
        "started": _to_datetime(parse_time(run.get("start_time"))),
        "ended": _to_datetime(ended),
        "waited_s": max(0.0, (ended or time.time()) - job["submitted"] - ran_s),
        "ran_s": ran_s,
        "attempts": run.get("run_count", 0),
        "policy": None,
        "tier": None,
        "declined_offers": None,
        "devices": None,
    }


def _to_datetime(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
