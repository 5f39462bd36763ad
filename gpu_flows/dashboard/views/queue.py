"""The waiting jobs: filtered, in the order that is asked for, page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from gpu_flows.dashboard.views.look import Look, contains, page_of
from gpu_flows.worker.status_text import measure_wait

Job = dict[str, Any]
LAST = float("inf")

# The columns by which the jobs can be ordered, with the order that the first click on one gives.
ORDERS: dict[str, tuple[Callable[[Job, float], Any], bool]] = {
    "position": (lambda job, now: job["position"] or LAST, False),
    "name": (lambda job, now: job["name"].casefold(), False),
    "user": (lambda job, now: job["user"].casefold(), False),
    "gpus": (lambda job, now: job["gpus"], True),
    "priority": (lambda job, now: job["priority"], True),
    "waited": (measure_wait, True),
    "reason": (lambda job, now: job["reason"], False),
    "start": (lambda job, now: start_of(job) or LAST, False),
}
COLUMNS = {
    "position": "#",
    "name": "Job",
    "user": "User",
    "gpus": "GPUs",
    "priority": "Priority",
    "waited": "Waited",
    "start": "Starts",
    "reason": "Why it waits",
}
NUMBERS = {"position", "gpus", "priority", "waited", "start"}


def start_of(job: Job) -> float | None:
    """Return when the job is expected to start, if that is known."""
    eta = job.get("eta") or {}
    return eta.get("start_p50")


def values(look: Look) -> dict[str, Any]:
    waiting, now = look.snapshot.waiting, look.snapshot.now
    user, reason, text = look.get("user"), look.get("reason"), look.get("q")
    found = [
        job
        for job in waiting
        if (not user or job["user"] == user)
        and (not reason or job["reason"] == reason)
        and contains(text, job["name"], job["id"], job["user"], job["why"])
    ]
    order = look.get("sort") or "position"
    name, reverse = order.removeprefix("-"), order.startswith("-")
    rank, _ = ORDERS.get(name, ORDERS["position"])
    found.sort(key=lambda job: rank(job, now), reverse=reverse)
    return {
        "user_options": list_users(waiting),
        "reason_options": [
            (code, f"{code.replace('_', ' ')} ({count:,})") for code, count in count_reasons(waiting)
        ],
        "filtered": bool(user or reason or text),
        "page": page_of(found, look.get("page")),
        "columns": [_column(look, key, order) for key in columns_of(waiting)],
        "total": len(waiting),
        "labels": COLUMNS,
        "numbers": NUMBERS,
        "start_of": start_of,
    }


def columns_of(jobs: list[Job]) -> list[str]:
    """Return the columns; when jobs start is one if it is known of any of them."""
    return [name for name in COLUMNS if name != "start" or any(map(start_of, jobs))]


def list_users(jobs: list[Job]) -> list[tuple[str, str]]:
    """Return the users of these jobs as options of a menu."""
    return [(user, user) for user in sorted({job["user"] for job in jobs}, key=str.casefold) if user]


def count_reasons(waiting: list[Job]) -> list[tuple[str, int]]:
    return Counter(job["reason"] for job in waiting).most_common()


def _column(look: Look, key: str, order: str) -> dict[str, Any]:
    """Describe the head of a column: a click orders by it, and the next click the other way round."""
    _, largest_first = ORDERS[key]
    first, second = (f"-{key}", key) if largest_first else (key, f"-{key}")
    sorted_as = {key: "ascending", f"-{key}": "descending"}.get(order, "")
    return {
        "key": key,
        "label": COLUMNS[key],
        "is_number": key in NUMBERS,
        "sorted": sorted_as,
        "href": look.link(sort=second if order == first else first, page=""),
    }
