"""What the Prefect UI shows of a pool: its queue, its devices and its policies, as tables.

The content comes from the pool's status. Both UIs of Prefect draw a table's cells, with differences: V1 turns
HTML and links in them into elements, V2 shows them as text, and only V1 has links in a table. So the links to
runs are also in the description above the table, which both draw as Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from gpu_flows.analytics.query_runner import QueryResult
from gpu_flows.common.clock import describe_late, describe_time
from gpu_flows.worker.status import Status

MOST_ROWS = 200
MOST_LINKS = 10  # runs in the description of a queue
MOST_CHARACTERS = 300  # of a cell
RUN_PAGE = "../../runs/flow-run/"  # from the page of an artifact, below the root of whichever UI shows it
JOINER = "\u2060"  # invisible; it keeps a browser from reading HTML or a link

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A table artifact. Changes of the columns in `moving` alone are not urgent."""

    kind: str  # queue, devices or comparison
    description: str  # Markdown
    rows: list[Row]
    moving: frozenset[str] = frozenset()

    @property
    def settled(self) -> tuple[object, ...]:
        """What is worth showing at once when it changes."""
        return self.description, [
            {key: value for key, value in row.items() if key not in self.moving} for row in self.rows
        ]


def make_tables(status: Status) -> list[Table]:
    """Return the tables of a pool that another worker or this one serves."""
    return [make_queue_table(status), make_devices_table(status)]


def make_queue_table(status: Status) -> Table:
    """The waiting jobs in their order, with why each waits and what would help."""
    first = status.waiting[:MOST_ROWS]
    rows = [_describe_waiting(position, job, status.at) for position, job in enumerate(first, 1)]
    policy = status.policy
    serving = f" (failed, {policy['serving']} decides)" if policy["serving"] != policy["name"] else ""
    description = (
        f"**Queue of pool {to_markdown(status.pool)}**: {status.waiting_count} waiting, "
        f"{len(status.running)} running, policy {to_markdown(policy['name'] + serving)}.\n\n"
        + _list_runs("First in the queue", status.waiting)
        + _list_runs("Running", status.running)
        + _note_rest(status.waiting_count)
    )
    return Table("queue", description, rows, frozenset({"waited", "ETA"}))


def make_devices_table(status: Status) -> Table:
    """The devices with their load, their health and the jobs on them."""
    rows = [_describe_device(device) for device in status.devices[:MOST_ROWS]]
    total = len(status.devices)
    used = sum(bool(device["jobs"]) for device in status.devices)
    out = sum(not device["healthy"] for device in status.devices)
    description = (
        f"**Devices of pool {to_markdown(status.pool)}**: {used} of {total} in use, {out} out of use.\n\n"
        + (f"{to_markdown(status.cluster_trouble)}\n\n" if status.cluster_trouble else "")
        + _note_rest(total)
    )
    return Table("devices", description, rows, frozenset({"utilization", "memory"}))


def make_comparison_table(pool: str, found: QueryResult) -> Table:
    """The policies of the pool side by side, from the named query `policies`."""
    rows = [
        {
            name: to_text(value) if isinstance(value, str) else value
            for name, value in zip(found.columns, row, strict=True)
            if name != "pool"
        }
        for row in found.rows
    ]
    description = (
        f"**Policies of pool {to_markdown(pool)}**, by what the jobs that each of them started took. "
        "`gpu-flows sql policies` prints the same."
    )
    return Table("comparison", description, rows[:MOST_ROWS])


def key_of(kind: str, pool: str) -> str:
    """Return the key of a pool's artifact. Keys consist of lowercase letters, digits and dashes; where that
    changes the name, a few digits tell it from a similar one."""
    slug = re.sub(r"[^a-z0-9]+", "-", pool.lower()).strip("-")
    digits = "" if slug == pool else sha256(pool.encode()).hexdigest()[:8]
    return "-".join(filter(None, ("gpu", kind, slug, digits)))


def to_text(value: object) -> str:
    """Return a text that both UIs show as it is, in a cell: no HTML, no link, no control character."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in str(value)[:MOST_CHARACTERS])
    return re.sub(
        r"<(?=\S)|]\(|:(?=//)|\bwww(?=\.)", lambda found: found[0][:1] + JOINER + found[0][1:], shown
    )


def to_markdown(value: object) -> str:
    """Return a text that cannot become markup, also in the text of a link, where V1 knows no escapes."""
    return to_text(value).translate(str.maketrans("[]<>`\\|", "()‹›'/¦"))


def _describe_waiting(position: int, job: dict[str, Any], now: float) -> Row:
    return {
        "#": position,
        "run": to_text(job["name"]),
        "user": to_text(job["user"]),
        "GPUs": job["gpus"],
        "waited": _format_wait(job["waited"]),
        "ETA": _format_eta(job.get("eta"), now),
        "reason": job["reason"],
        "why": to_text(job["why"]),
        "what would help": to_text(job["fix"]),
        "page": f"[open]({RUN_PAGE}{job['id']})",
    }


def _describe_device(device: dict[str, Any]) -> Row:
    used, total = device["memory_used_mb"], device["memory_mb"]
    busy = device["utilization"]
    return {
        "device": to_text(f"{device['node']}:{device['index']}"),
        "model": to_text(device["model"]),
        "utilization": "" if busy is None else f"{busy:.0f} %",
        "memory": f"{'' if used is None else f'{used / 1024:.1f} of '}{total / 1024:.0f} GB",
        "health": "ok" if device["healthy"] else to_text(device["detail"] or "sick"),
        "jobs": to_text(", ".join(device["jobs"])),
        "id": to_text(device["id"]),
    }


def _list_runs(title: str, jobs: Sequence[dict[str, Any]]) -> str:
    """Links to the pages of the first runs, for V2, whose tables have none."""
    links = [f"[{to_markdown(job['name']) or 'run'}]({RUN_PAGE}{job['id']})" for job in jobs[:MOST_LINKS]]
    rest = f" and {len(jobs) - MOST_LINKS} more" if len(jobs) > MOST_LINKS else ""
    return f"{title}: {', '.join(links)}{rest}.\n\n" if links else ""


def _note_rest(rows: int) -> str:
    return f"The table shows the first {MOST_ROWS} of {rows}." if rows > MOST_ROWS else ""


def _format_wait(seconds: float) -> str:
    """In whole minutes, so that a cell changes rarely."""
    minutes = int(seconds // 60)
    if not minutes:
        return "< 1 min"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _format_eta(eta: dict[str, float] | None, now: float) -> str:
    """When the job will start, in the time of the worker's machine: `14:20 (p90 15:05 CET)`."""
    if not eta or eta.get("start_p50") is None:
        return ""
    start = eta["start_p50"]
    late = describe_late(start, eta.get("start_p90", start), now, with_zone=True)
    return f"{describe_time(start, now)} (p90 {late})" if late else describe_time(start, now, with_zone=True)
