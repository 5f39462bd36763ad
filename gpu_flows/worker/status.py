"""What a worker knows right now, as a small file that the command line reads.

The file is written whole, about once a second, and only by the worker that acts for the pool.
Reading it costs the server nothing, however many runs wait.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_flows.config.paths import pool_folder
from gpu_flows.devices.base import Reading

if TYPE_CHECKING:  # the command line reads a status without needing to know what a dispatcher is
    from gpu_flows.dispatch.dispatcher import Dispatcher

FRESH_S = 10.0
MOST_EXPLAINED = 2000  # beyond that a queue is listed without reasons


@dataclass(frozen=True, slots=True)
class Status:
    pool: str
    worker: str
    at: float
    policy: dict[str, Any]  # name, options, serving, error
    waiting: list[dict[str, Any]]
    running: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    trouble: str = ""  # why facts are not reaching the warehouse

    @property
    def fresh(self) -> bool:
        return time.time() - self.at < FRESH_S


def publish(status: Status) -> None:
    """Replace the pool's status file. A full disk only makes the status stale."""
    path = _path(status.pool)
    scratch = path.with_suffix(".new")
    try:
        scratch.write_text(json.dumps(asdict(status)))
        os.replace(scratch, path)
    except OSError:
        pass


def read_status(pool: str) -> Status | None:
    """The status of the pool's worker, if one acts for it on this machine now."""
    try:
        status = Status(**json.loads(_path(pool).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return status if status.fresh else None


def status_of(
    pool: str,
    worker: str,
    dispatcher: Dispatcher,
    options: dict[str, Any],
    refused_edit: str,
    readings: dict[str, Reading],
    trouble: str,
) -> Status:
    engine = dispatcher.engine
    waiting = [
        {
            "id": job.id,
            "name": job.name,
            "user": job.user,
            "gpus": job.gpus,
            "priority": job.priority,
            "submitted": job.submitted,
            "reason": reason.code,
            "why": reason.summary,
            "fix": reason.fix,
            "attempts": dispatcher.progress(job.id).attempts,
            "preemptions": dispatcher.progress(job.id).preemptions,
        }
        for job, reason in dispatcher.reasons(MOST_EXPLAINED)
    ]
    running: list[dict[str, Any]] = [
        {
            "id": running.job.id,
            "name": running.job.name,
            "user": running.job.user,
            "gpus": running.job.gpus,
            "priority": running.job.priority,
            "submitted": running.job.submitted,
            "since": running.since,
            "attempt": running.attempt,
            "policy": running.policy,
            "nodes": list(running.nodes),
            "devices": [device.id for device in running.devices],
            "leaving": leaving,
        }
        for running, leaving in dispatcher.occupants()
    ]
    holders: dict[str, list[str]] = {}
    for job in running:
        for device_id in job["devices"]:
            holders.setdefault(device_id, []).append(job["name"])
    devices = []
    for state in engine.cluster.devices.values():
        reading = readings.get(state.device.id) or Reading(state.device.id)
        node = engine.cluster.nodes.get(state.device.node)
        devices.append(
            {
                **asdict(state.device),
                "utilization": reading.utilization,
                "memory_used_mb": reading.memory_used_mb,
                "power_w": reading.power_w,
                "temperature_c": reading.temperature_c,
                "healthy": state.healthy and bool(node and node.up),
                "detail": state.detail or (node.detail if node else ""),
                "jobs": holders.get(state.device.id, []),
            }
        )
    policy = {
        "name": engine.policy.name,
        "options": options,
        "serving": engine.active_policy.name,
        "error": engine.policy_error or refused_edit,
    }
    return Status(pool, worker, time.time(), policy, waiting, running, devices, trouble)


def _path(pool: str) -> Path:
    return pool_folder(pool) / "status.json"
