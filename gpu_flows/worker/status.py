"""The status of a pool: a small file that its worker writes and the command line reads.

The worker that holds the pool's lease replaces the file about once a second. Reading it causes no load on the
server, however many runs wait. `status_builder` collects the content.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_flows.common.files import write_atomically
from gpu_flows.config.paths import pool_folder

FRESH_S = 10.0


@dataclass(frozen=True, slots=True)
class Status:
    pool: str
    worker: str
    at: float
    policy: dict[str, Any]  # name, options, serving, error
    waiting: list[dict[str, Any]]
    running: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    trouble: str = ""  # why devices are unknown, or why facts do not reach the warehouse

    @property
    def fresh(self) -> bool:
        return time.time() - self.at < FRESH_S


def write_status(status: Status) -> None:
    """Replace the pool's status file. If the disk is full, the old status stays and becomes stale."""
    with contextlib.suppress(OSError):
        write_atomically(_path(status.pool), json.dumps(asdict(status)))


def read_status(pool: str) -> Status | None:
    """Return the pool's status, or None if no worker on this machine serves the pool now."""
    try:
        status = Status(**json.loads(_path(pool).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return status if status.fresh else None


def _path(pool: str) -> Path:
    return pool_folder(pool) / "status.json"
