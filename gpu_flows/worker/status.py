"""The status of a pool: a small file that its worker writes and the command line reads.

The worker replaces the file about once a second; `leads` shows whether it holds the pool's lease. Reading it
causes no load on the server, however many runs wait. `status_builder` collects the content.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_flows.common.files import write_atomically
from gpu_flows.config.paths import pool_folder
from gpu_flows.schedulers.cluster.device_links import groups_of
from gpu_flows.schedulers.model import Node

FRESH_S = 10.0


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """How many jobs wait, by the code of the reason, and how many devices they ask for."""

    by_reason: Mapping[str, int]
    gpus: int


@dataclass(frozen=True, slots=True)
class Status:
    pool: str
    worker: str
    at: float
    policy: dict[str, Any]  # name, options, serving, error; when its block was saved
    waiting: list[dict[str, Any]]  # in the order of the queue, then those that may not start yet
    running: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    cluster_trouble: str = ""  # why devices are unknown
    recorder_trouble: str = ""  # why facts do not reach the warehouse
    no_forecast: str = ""  # why nothing is forecast
    leads: bool = True  # False: it stands by, and another worker serves the pool
    # A WaitingCount of all waiting jobs, if not all of them are listed.
    whole: dict[str, Any] = field(default_factory=dict)

    @property
    def waiting_by_reason(self) -> dict[str, int]:
        """How many jobs wait for each reason, also those that are not listed; the most frequent first."""
        counts = self.whole.get("by_reason") or Counter(job["reason"] for job in self.waiting)
        return dict(Counter(counts).most_common())

    @property
    def waiting_count(self) -> int:
        return sum(self.waiting_by_reason.values())

    @property
    def gpus_waited_for(self) -> int:
        """The devices that all waiting jobs ask for."""
        gpus: int = self.whole.get("gpus") or sum(job["gpus"] for job in self.waiting)
        return gpus

    @property
    def trouble(self) -> str:
        return " ".join(filter(None, (self.cluster_trouble, self.recorder_trouble)))

    @property
    def fresh(self) -> bool:
        return time.time() - self.at < FRESH_S


def describe_place(node: Node | None, index: int) -> dict[str, Any]:
    """Return the rack of a device and the groups of linked devices that it is in, the closest first."""
    if node is None:
        return {"rack": "", "links": []}
    groups = groups_of(node, index)
    return {
        "rack": node.rack,
        "links": [{"link": str(group.link), "devices": list(group.devices)} for group in groups],
    }


def write_status(status: Status) -> None:
    """Replace the pool's status file. If the disk is full, the old status stays and becomes stale."""
    with contextlib.suppress(OSError):
        write_atomically(status_path(status.pool), json.dumps(asdict(status)))


def read_status(pool: str) -> Status | None:
    """Return the pool's status, or None if no worker on this machine serves the pool now."""
    status = read_last_status(pool)
    return status if status and status.fresh and status.leads else None


def stands_by(pool: str) -> bool:
    """Whether a worker on this machine stands by, while another worker serves the pool."""
    status = read_last_status(pool)
    return bool(status and status.fresh and not status.leads)


def read_last_status(pool: str) -> Status | None:
    """Return the last status of the pool on this machine, however old it is; None if there is none."""
    try:
        return Status(**json.loads(status_path(pool).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def status_path(pool: str) -> Path:
    """The file that holds the status of the pool."""
    return pool_folder(pool) / "status.json"
