"""The pool at a glance."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

from gpu_flows.analytics.pages import Number
from gpu_flows.common.quantities import format_duration
from gpu_flows.dashboard.views import queue
from gpu_flows.dashboard.views.devices import by_node
from gpu_flows.dashboard.views.look import Look
from gpu_flows.worker.status_text import measure_wait

NEXT = 8  # jobs of the queue that are shown
MOST_NODES = 60  # whose devices are shown as squares


def values(look: Look) -> dict[str, Any]:
    snapshot = look.snapshot
    nodes = by_node(snapshot.devices)
    return {
        "numbers": _numbers(look, nodes),
        "next": snapshot.waiting[:NEXT],
        "columns": queue.columns_of(snapshot.waiting[:NEXT]),
        "labels": queue.COLUMNS,
        "number_columns": queue.NUMBERS,
        "start_of": queue.start_of,
        "reasons": list(snapshot.waiting_by_reason.items()),
        "nodes": nodes[:MOST_NODES],
        "more_nodes": max(0, len(nodes) - MOST_NODES),
        "users": _count_users(look),
    }


def _numbers(look: Look, nodes: list[dict[str, Any]]) -> list[Number]:
    snapshot = look.snapshot
    states = Counter(device["state"] for node in nodes for device in node["devices"])
    devices = len(snapshot.devices)
    loads = [each["utilization"] for each in snapshot.devices if each["utilization"] is not None]
    longest = max((measure_wait(job, snapshot.now) for job in snapshot.waiting), default=None)
    out = [f"{states[state]} {state}" for state in ("sick", "drained") if states[state]]
    return [
        Number("Waiting", f"{snapshot.waiting_count:,}", _wait(longest)),
        Number("Running", f"{len(snapshot.running):,}"),
        Number("GPUs busy", f"{states['busy']:,} of {devices:,}" if devices else "–"),
        Number("GPUs idle", f"{states['idle']:,}", ", ".join(out) or "all healthy" * bool(devices)),
        Number(
            "Utilization now", f"{fmean(loads):.0f}%" if loads else "–", "mean of all GPUs" if loads else ""
        ),
    ]


def _wait(longest: float | None) -> str:
    return "" if longest is None else f"longest: {format_duration(longest)}"


def _count_users(look: Look) -> list[tuple[str, int, int, int]]:
    """Return each user with their waiting jobs, running jobs and devices, those with most devices first."""
    waiting = Counter(job["user"] for job in look.snapshot.waiting)
    running = Counter(job["user"] for job in look.snapshot.running)
    held: Counter[str] = Counter()
    for job in look.snapshot.running:
        held[job["user"]] += len(job["devices"])
    rows = [(user, waiting[user], running[user], held[user]) for user in {*waiting, *running}]
    return sorted(rows, key=lambda row: (-row[3], -row[1], row[0].casefold()))[:10]
