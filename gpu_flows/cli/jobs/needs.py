"""How the memory and the time that a job needs are shown, and whether they were stated or predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_flows.cli import output

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
    return _describe(need, output.format_duration)


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
    return f"{_mark(need)}{output.format_duration(need['value'])}" if need else ""


def is_predicted(job: dict[str, Any]) -> bool:
    return any(need and need["how"] != "stated" for need in (job.get("memory"), job.get("time")))


def _mark(need: dict[str, Any]) -> str:
    return "" if need["how"] == "stated" else "~"
