"""What a waiting job waits for and what would let it start earlier, as data that is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gpu_flows.schedulers.forecast.alternatives import find_alternatives, look_ahead
from gpu_flows.schedulers.forecast.pool_state import PoolState


def describe_prospects(state: PoolState, job_id: str, is_late: Callable[[], bool]) -> dict[str, Any]:
    """Return `waits_for` (job_id, name, until) and `alternatives` (kind, value, label, start) of a waiting
    job. Raises UnknownDurations and PolicyError."""
    outlook = look_ahead(state, job_id)
    start = outlook.start if outlook else None
    return {
        "waits_for": [asdict(each) for each in outlook.waits_for] if outlook else [],
        "alternatives": [asdict(each) for each in find_alternatives(state, job_id, start, is_late=is_late)],
    }
