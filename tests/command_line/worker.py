"""The status file of a worker, which is all that the command line reads of it."""

from __future__ import annotations

import time
from typing import Any

from gpu_flows.config.paths import pool_folder
from gpu_flows.worker.status import Status
from gpu_flows.worker.status import write_status as write_status_file


def write_status(pool: str = "gpu", **parts: Any) -> Status:
    """Write the status of a worker that serves the pool on this machine."""
    pool_folder(pool).mkdir(parents=True, exist_ok=True)
    defaults: dict[str, Any] = {
        "pool": pool,
        "worker": "worker-1",
        "at": time.time(),
        "policy": {"name": "fifo", "options": {}, "serving": "fifo", "error": ""},
        **{"waiting": [], "running": [], "devices": []},
    }
    status = Status(**{**defaults, **parts})
    write_status_file(status)
    return status


def waiting_job(name: str = "patient", **parts: Any) -> dict[str, Any]:
    return {
        **_job("11111111-aaaa-4aaa-8aaa-000000000001", name, "ada", gpus=2, priority=3, age_s=200),
        "reason": "capacity",
        "why": "1st in the queue, needs 2 GPUs on one node; 0 such are free.",
        "fix": "",
        **parts,
    }


def running_job(name: str = "busy", **parts: Any) -> dict[str, Any]:
    return {
        **_job("22222222-bbbb-4bbb-8bbb-000000000002", name, "bob", gpus=1, priority=0, age_s=100),
        "since": time.time() - 65,
        "attempt": 1,
        "policy": "fifo",
        "nodes": ["node-1"],
        "devices": ["SIM-node-1-0"],
        **parts,
    }


def _job(id: str, name: str, user: str, age_s: float, **parts: int) -> dict[str, Any]:
    return {"id": id, "name": name, "user": user, "submitted": time.time() - age_s, **parts}


def device(**parts: Any) -> dict[str, Any]:
    return {
        "id": "SIM-node-1-0",
        "node": "node-1",
        "index": 0,
        "model": "GTX 1080 Ti",
        "memory_mb": 11264,
        "utilization": 87.4,
        "memory_used_mb": 5632.0,
        "power_w": 201.0,
        "temperature_c": 66.0,
        "healthy": True,
        "detail": "",
        "jobs": ["busy"],
        **parts,
    }
