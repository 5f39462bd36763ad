"""The file with the state of a pool, which the forecasting child writes and others read."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gpu_flows.schedulers.forecast.pool_state import PoolState


def state_path(folder: Path) -> Path:
    """Return the path of the file in the folder of the pool."""
    return folder / "state.json"


def read_state(folder: Path) -> PoolState | None:
    """Return the last state of the pool on this machine; None if there is none."""
    try:
        return PoolState.from_json(state_path(folder).read_bytes())
    except (OSError, ValueError):
        return None


def read_present_state(folder: Path) -> PoolState | None:
    """Return the same as it is now: what was to end since has not ended, and so is late."""
    state = read_state(folder)
    return replace(state, now=max(state.now, time.time())) if state else None
