"""The running jobs with their progress, when they end, and their devices."""

from __future__ import annotations

from typing import Any

from gpu_flows.dashboard.views.look import Look, contains, page_of
from gpu_flows.dashboard.views.queue import list_users
from gpu_flows.worker.status_text import place_devices


def end_of(job: dict[str, Any], now: float) -> tuple[float | None, float | None]:
    """Return when the job is expected to end, and when it will have ended probably: by its forecast, else by
    its progress. None if nothing is known."""
    eta, progress = job.get("eta") or {}, job.get("progress")
    if eta.get("end_p50"):
        return eta["end_p50"], eta.get("end_p90")
    if progress:
        return now + progress["remaining_s"], now + progress["upper_s"]
    return None, None


def values(look: Look) -> dict[str, Any]:
    user, text = look.get("user"), look.get("q")
    running = look.snapshot.running
    found = [
        {**job, "on": place_devices(job["devices"], look.snapshot.devices)}
        for job in running
        if (not user or job["user"] == user)
        and contains(text, job["name"], job["id"], job["user"], *job["nodes"])
    ]
    return {
        "user_options": list_users(running),
        "filtered": bool(user or text),
        "page": page_of(found, look.get("page")),
        "total": len(running),
        "end_of": end_of,
    }
