"""`gpu-flows queue`: the waiting jobs with their reasons, and the running jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from gpu_flows.cli import output
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.jobs.pool_jobs import SERVER, read_pool_jobs
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, WatchOption, examples


@examples("gpu-flows queue", "gpu-flows queue --all --watch", "gpu-flows queue --json")
def queue(
    pool: PoolOption = DEFAULT_POOL,
    running: Annotated[bool, typer.Option("--running", help="Show the running jobs only.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show the waiting and the running jobs.")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="At most N rows; 0 shows all.")] = 50,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the waiting jobs in the order of the queue, with the reason why each waits.

    With --all, also list the running jobs and their devices; with --running, list only those. The data
    comes from the worker if one serves the pool on this machine, else from the Prefect server.
    """

    def draw(jobs: dict[str, Any]) -> Group:
        shown: list[Any] = []
        if not running:
            shown += _draw_waiting(jobs["waiting"], limit)
        if running or everything:
            shown += [Text()] if shown else []
            shown += _draw_running(jobs["running"], limit)
        return Group(*shown, Text(), _summarize(jobs))

    output.show_or_watch(lambda: read_pool_jobs(pool), draw, as_json, watch)


def _draw_waiting(jobs: list[dict[str, Any]], limit: int) -> list[Any]:
    if not jobs:
        return [Text("No job waits.")]
    columns = ["#", "run", "user", "GPUs", "priority", "waited", "why it waits"]
    rows = [
        [
            *(job[key] for key in ("position", "name", "user", "gpus", "priority")),
            output.format_duration(job["waited_s"]),
            f"{_describe_preemptions(job)}{job['why']} {job['fix']}".strip(),
        ]
        for job in jobs[: limit or None]
    ]
    table = output.make_table(columns, rows, right=("#", "GPUs", "priority", "waited"))
    return [table, *_note_rest(len(jobs), limit)]


def _describe_preemptions(job: dict[str, Any]) -> str:
    times = job.get("preemptions", 0)
    return "" if not times else "Preempted. " if times == 1 else f"Preempted {times} times. "


def _draw_running(jobs: list[dict[str, Any]], limit: int) -> list[Any]:
    if not jobs:
        return [Text("No job runs.")]
    columns = ["running", "user", "GPUs", "priority", "for", "on"]
    rows = [
        [
            *(job[key] for key in ("name", "user", "gpus", "priority")),
            output.format_duration(job["running_s"]),
            ", ".join(job.get("devices") or [job.get("state", "")]) + _note_stopping(job),
        ]
        for job in jobs[: limit or None]
    ]
    table = output.make_table(columns, rows, right=("GPUs", "priority", "for"))
    return [table, *_note_rest(len(jobs), limit)]


def _note_stopping(job: dict[str, Any]) -> str:
    return " (stopping)" if job.get("stopping") else ""


def _note_rest(count: int, limit: int) -> list[Text]:
    rest = count - limit
    return [Text(f"... and {rest} more; --limit 0 shows all.")] if limit and rest > 0 else []


def _summarize(jobs: dict[str, Any]) -> Text:
    text = f"{len(jobs['waiting'])} waiting, {len(jobs['running'])} running in pool {jobs['pool']!r}"
    policy = jobs["policy"]
    if policy:
        text += f", policy {policy['name']}"
        text += f" (failed, {policy['serving']} decides)" if policy["serving"] != policy["name"] else ""
    if jobs["source"] == SERVER:
        text += "; read from the Prefect server, because no worker serves the pool on this machine"
    warning = jobs["trouble"] or (policy or {}).get("error", "")
    return Text.assemble((escape(text) + ".", "dim"), f"\n{escape(warning)}" if warning else "")
