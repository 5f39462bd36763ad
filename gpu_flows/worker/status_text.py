"""How the entries of a pool's status are shown: what a job needs and whether that was stated or predicted,
how far it is, how long it has waited, and where its devices are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpu_flows.common.quantities import format_duration

LATE_S = 4.0  # a worker replaces its status about once a second
NOTE = "~ marks what is predicted; `gpu-flows why RUN` tells how."
_ORIGINS = {
    "stated": "stated",
    "raised": "raised, because it ran out of memory",
    "traced": "predicted from a trace of its training step",
    "history": "predicted from earlier jobs",
    "features": "predicted from its parameters",
    "progress": "predicted from its progress",
}


def describe_memory(need: dict[str, Any] | None) -> str:
    """`9.2 GB (predicted from earlier jobs, at most 10.1 GB)`; empty if nothing is known."""
    return _describe(need, lambda mb: f"{mb / 1024:.3g} GB per device")


def describe_time(need: dict[str, Any] | None) -> str:
    return _describe(need, format_duration)


def _describe(need: dict[str, Any] | None, show: Callable[[float], str]) -> str:
    if not need:
        return ""
    bound = f", at most {show(need['upper'])}" if need["upper"] > need["value"] else ""
    return f"{show(need['value'])} ({_ORIGINS.get(need['how'], 'predicted')}{bound})"


def mark_memory(job: dict[str, Any]) -> str:
    """The memory that is set aside for a job, as a cell of a table."""
    need = job.get("memory")
    return f"{_mark(need)}{need['upper'] / 1024:.3g} GB" if need else ""


def mark_time(job: dict[str, Any]) -> str:
    need = job.get("time")
    return f"{_mark(need)}{format_duration(need['value'])}" if need else ""


def is_predicted(job: dict[str, Any]) -> bool:
    return any(need and need["how"] != "stated" for need in (job.get("memory"), job.get("time")))


def _mark(need: dict[str, Any]) -> str:
    return "" if need["how"] == "stated" else "~"


def describe_progress(progress: dict[str, Any] | None) -> str:
    """`45% done, about 3m 00s left, probably within 4m 00s (tqdm)`; empty if its output does not tell it."""
    if not progress:
        return ""
    left, most = (format_duration(progress[name]) for name in ("remaining_s", "upper_s"))
    done = f"{100 * progress['fraction']:.0f}% done"
    return f"{done}, about {left} left, probably within {most} ({progress['source']})"


def note_left(job: dict[str, Any]) -> str:
    """`, 3m 00s left`, to be added to the time that the job has run; empty if its output does not tell it."""
    progress = job.get("progress")
    return f", {format_duration(progress['remaining_s'])} left" if progress else ""


def measure_wait(job: dict[str, Any], now: float) -> float:
    """How long a waiting job has waited, without the time for which it ran before it was preempted."""
    return float(job["waited"]) if "waited" in job else max(0.0, now - job["submitted"])


def place_devices(ids: Iterable[str], devices: Iterable[dict[str, Any]]) -> str:
    """`node-1:0,1 node-2:3`: the devices by node and index, or by id where they are not known."""
    known = {device["id"]: device for device in devices}
    return format_places((known[id]["node"], known[id]["index"]) if id in known else (id, "") for id in ids)


def format_places(places: Iterable[tuple[str, object]]) -> str:
    by_node: dict[str, list[str]] = {}
    for node, index in places:
        by_node.setdefault(node, []).append(str(index))
    return " ".join(f"{node}:{','.join(found)}".rstrip(":,") for node, found in by_node.items())
