"""`gpu-flows queue`: the waiting jobs with their reasons, and the running jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from gpu_flows.cli import output
from gpu_flows.cli.benchmark_notice import note_benchmark
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.jobs.etas import describe_head, find_eta_columns
from gpu_flows.cli.jobs.pool_jobs import SERVER, read_pool_jobs
from gpu_flows.cli.jobs.runs import shorten
from gpu_flows.cli.jobs.tables import draw_jobs
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, WatchOption, examples
from gpu_flows.worker.status_text import NOTE, is_predicted, mark_memory, mark_time, note_left


@examples("gpu-flows queue", "gpu-flows queue --all --watch", "gpu-flows queue --json")
def queue(
    pool: PoolOption = DEFAULT_POOL,
    running: Annotated[bool, typer.Option("--running", help="Show the running jobs only.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show the waiting and the running jobs.")] = False,
    wide: Annotated[
        bool, typer.Option("--wide", help="Also show when jobs start and end at the latest, most likely.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="At most N rows; 0 shows all.")] = 50,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the waiting jobs in the order of the queue, with the reason why each waits.

    Jobs without a place in the queue (#) may not start yet: a hold, a limit, a pause or another run keeps
    them back. With --all, also list the running jobs and their devices (node:index); with --running, list
    only those. `starts` and `ends` are forecasts: a job is as likely to be earlier as later. With --wide,
    nine of ten jobs are no later than the time in brackets. Suspended jobs follow the others; they continue
    after `gpu-flows resume`. The data comes from the worker if one serves the pool on this machine, else from
    the Prefect server.
    """

    def draw(jobs: dict[str, Any]) -> Group:
        shown: list[Any] = []
        if not running:
            shown += _draw_waiting(jobs["waiting"], limit, wide)
        if running or everything:
            shown += [Text()] if shown else []
            shown += _draw_running(jobs["running"], limit, wide)
        if not running:
            shown += _draw_suspended(jobs["suspended"], limit)
        listed = [
            *(jobs["waiting"] if not running else []),
            *(jobs["running"] if running or everything else []),
        ]
        note = [Text(NOTE)] if any(map(is_predicted, listed)) else []
        if listed and jobs.get("no_forecast"):
            note.append(Text(escape(f"No forecasts: {jobs['no_forecast']}")))
        return Group(*shown, Text(), _summarize(jobs), *note)

    def read() -> dict[str, Any]:
        jobs = read_pool_jobs(pool)
        return {**jobs, "benchmark": note_benchmark(jobs)}

    output.show_or_watch(read, draw, as_json, watch)


def _draw_waiting(jobs: list[dict[str, Any]], limit: int, wide: bool) -> list[Any]:
    if not jobs:
        return [Text("No job waits.")]
    needs, etas = _find_needs(jobs), find_eta_columns(jobs, ("start", "end") if wide else ("start",), wide)
    columns = ["#", "id", "run", "user", "GPUs", *needs, "priority", "waited", *etas, "why it waits"]
    rows = [
        [
            job["position"],
            shorten(job["id"]),
            *(job[key] for key in ("name", "user", "gpus")),
            *(mark(job) for mark in needs.values()),
            job["priority"],
            output.format_duration(job["waited_s"]),
            *(show(job) for show in etas.values()),
            f"{_describe_preemptions(job)}{job['why']} {job['fix']} {describe_head(job)}".strip(),
        ]
        for job in jobs[: limit or None]
    ]
    table = draw_jobs(columns, rows, right=("#", "GPUs", *needs, "priority", "waited", *etas))
    return [table, *_note_rest(len(jobs), limit)]


def _find_needs(jobs: list[dict[str, Any]]) -> dict[str, Callable[[dict[str, Any]], str]]:
    """The columns for memory and time, each if it is known of any of these jobs."""
    columns = {"memory": mark_memory, "time": mark_time}
    return {name: mark for name, mark in columns.items() if any(map(mark, jobs))}


def _describe_preemptions(job: dict[str, Any]) -> str:
    times = job.get("preemptions", 0)
    return "" if not times else "Preempted. " if times == 1 else f"Preempted {times} times. "


def _draw_running(jobs: list[dict[str, Any]], limit: int, wide: bool) -> list[Any]:
    if not jobs:
        return [Text("No job runs.")]
    needs, etas = _find_needs(jobs), find_eta_columns(jobs, ("end",), wide)
    columns = ["id", "running", "user", "GPUs", *needs, "priority", "for", *etas, "on"]
    rows = [
        [
            shorten(job["id"]),
            *(job[key] for key in ("name", "user", "gpus")),
            *(mark(job) for mark in needs.values()),
            job["priority"],
            output.format_duration(job["running_s"]) + note_left(job),
            *(show(job) for show in etas.values()),
            job["on"] + _note_stopping(job),
        ]
        for job in jobs[: limit or None]
    ]
    table = draw_jobs(columns, rows, right=("GPUs", *needs, "priority", "for", *etas))
    return [table, *_note_rest(len(jobs), limit)]


def _draw_suspended(jobs: list[dict[str, Any]], limit: int) -> list[Any]:
    if not jobs:
        return []
    columns = ["id", "suspended", "user", "GPUs", "priority", "to continue it"]
    rows = [
        [
            shorten(job["id"]),
            *(job[key] for key in ("name", "user", "gpus", "priority")),
            f"gpu-flows resume {shorten(job['id'])}",
        ]
        for job in jobs[: limit or None]
    ]
    return [Text(), draw_jobs(columns, rows, right=("GPUs", "priority")), *_note_rest(len(jobs), limit)]


def _note_stopping(job: dict[str, Any]) -> str:
    return " (stopping)" if job.get("stopping") else ""


def _note_rest(count: int, limit: int) -> list[Text]:
    rest = count - limit
    return [Text(f"... and {rest} more; --limit 0 shows all.")] if limit and rest > 0 else []


def _summarize(jobs: dict[str, Any]) -> Text:
    text = f"{len(jobs['waiting'])} waiting, {len(jobs['running'])} running"
    text += f", {len(jobs['suspended'])} suspended" if jobs["suspended"] else ""
    text += f" in pool {jobs['pool']!r}"
    policy = jobs["policy"]
    if policy:
        text += f", policy {policy['name']}"
        text += f" (failed, {policy['serving']} decides)" if policy["serving"] != policy["name"] else ""
    if jobs["source"] == SERVER:
        text += "; read from the Prefect server, because no worker serves the pool on this machine"
    remarks = filter(None, (jobs["benchmark"], jobs["trouble"] or (policy or {}).get("error", "")))
    return Text.assemble((escape(text) + ".", "dim"), *(f"\n{escape(remark)}" for remark in remarks))
