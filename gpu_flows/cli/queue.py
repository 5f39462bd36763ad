"""`gpu-flows queue`: who waits, and why; also who runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption, WatchOption
from gpu_flows.cli.pool_view import SERVER, look
from gpu_flows.cli.problem import inert


@parts.examples("gpu-flows queue", "gpu-flows queue --all --watch", "gpu-flows queue --json")
def queue(
    pool: PoolOption = DEFAULT_POOL,
    running: Annotated[bool, typer.Option("--running", help="Only what runs.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="What waits and what runs.")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Most rows of a table; 0 shows all.")] = 50,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List who waits, in the order of the line, and why; also who runs.

    Read from the worker if one serves the pool on this machine, else from the Prefect server.
    """

    def draw(view: dict[str, Any]) -> Group:
        shown: list[Any] = []
        if not running:
            shown += _waiting(view["waiting"], limit)
        if running or everything:
            shown += [Text()] if shown else []
            shown += _running(view["running"], limit)
        return Group(*shown, Text(), _summary(view))

    parts.present(lambda: look(pool), draw, as_json, watch)


def _waiting(jobs: list[dict[str, Any]], limit: int) -> list[Any]:
    if not jobs:
        return [Text("Nothing waits.")]
    columns = ["#", "run", "user", "GPUs", "priority", "waited", "why it waits"]
    rows = [
        [
            job["position"],
            job["name"],
            job["user"],
            job["gpus"],
            job["priority"],
            parts.duration(job["waited_s"]),
            f"{_past(job)}{job['why']} {job['fix']}".strip(),
        ]
        for job in jobs[: limit or None]
    ]
    return [parts.table(columns, rows, right=("#", "GPUs", "priority", "waited")), *_rest(len(jobs), limit)]


def _past(job: dict[str, Any]) -> str:
    times = job.get("preemptions", 0)
    return "" if not times else "Preempted. " if times == 1 else f"Preempted {times} times. "


def _running(jobs: list[dict[str, Any]], limit: int) -> list[Any]:
    if not jobs:
        return [Text("Nothing runs.")]
    columns = ["running", "user", "GPUs", "priority", "for", "on"]
    rows = [
        [
            job["name"],
            job["user"],
            job["gpus"],
            job["priority"],
            parts.duration(job["running_s"]),
            ", ".join(job.get("devices") or [job.get("state", "")]) + _leaving(job),
        ]
        for job in jobs[: limit or None]
    ]
    return [parts.table(columns, rows, right=("GPUs", "priority", "for")), *_rest(len(jobs), limit)]


def _leaving(job: dict[str, Any]) -> str:
    return " (leaving)" if job.get("leaving") else ""


def _rest(count: int, limit: int) -> list[Text]:
    left = count - limit
    return [Text(f"... and {left} more; --limit 0 shows all.")] if limit and left > 0 else []


def _summary(view: dict[str, Any]) -> Text:
    text = f"{len(view['waiting'])} waiting, {len(view['running'])} running in pool {view['pool']!r}"
    policy = view["policy"]
    if policy:
        text += f", policy {policy['name']}"
        text += f" (put aside, {policy['serving']} serves)" if policy["serving"] != policy["name"] else ""
    if view["source"] == SERVER:
        text += "; as the Prefect server knows it, no worker serves the pool on this machine"
    warning = view["trouble"] or (policy or {}).get("error", "")
    return Text.assemble((inert(text) + ".", "dim"), f"\n{inert(warning)}" if warning else "")
