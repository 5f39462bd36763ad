"""What a waiting job waits for and what would let it start earlier, as data that is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gpu_flows.schedulers.forecast.alternatives import Outlook, find_alternatives, look_ahead
from gpu_flows.schedulers.forecast.pool_state import PoolState


def describe_prospects(state: PoolState, job_id: str, is_late: Callable[[], bool]) -> dict[str, Any]:
    """Return what a waiting job `waits_for` (job_id, name, until), the `devices` that it gets, and
    `alternatives` (kind, value, label, start) with which it would start earlier. Raises UnknownDurations and
    PolicyError."""
    return describe_outlook(state, job_id, look_ahead(state, job_id), is_late)


def describe_outlook(
    state: PoolState, job_id: str, outlook: Outlook | None, is_late: Callable[[], bool]
) -> dict[str, Any]:
    """Return the same of a job whose start is known already."""
    start = outlook.start if outlook else None
    starts_now = start is not None and start <= state.now
    tried = [] if starts_now else find_alternatives(state, job_id, start, is_late=is_late)
    return {
        "starts_now": starts_now,
        "devices": list(outlook.devices) if outlook else [],
        "waits_for": [asdict(each) for each in outlook.waits_for] if outlook else [],
        "alternatives": [asdict(each) for each in tried],
    }
