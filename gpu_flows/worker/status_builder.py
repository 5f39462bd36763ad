"""Collects the status of a pool from its dispatcher, its blocks and its devices."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from gpu_flows.config.block_follower import BlockFollower
from gpu_flows.devices.base import Reading
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Reason, Running
from gpu_flows.worker.status import Status

MOST_LISTED = 2000  # jobs beyond this place in the queue are not listed


def build_status(
    pool: str, worker: str, dispatcher: Dispatcher, blocks: BlockFollower, recorder_trouble: str
) -> Status:
    """Return what the pool's worker knows now."""
    engine = dispatcher.engine
    running = [_describe_running(job, preemption) for job, preemption in dispatcher.occupants()]
    troubles = [blocks.cluster_error, blocks.missing_devices, recorder_trouble]
    return Status(
        pool,
        worker,
        time.time(),
        policy={
            "name": engine.policy.name,
            "options": blocks.policy_options,
            "serving": engine.active_policy.name,
            "error": engine.policy_error or blocks.policy_error,
        },
        waiting=[
            _describe_waiting(job, reason, dispatcher) for job, reason in dispatcher.reasons(MOST_LISTED)
        ],
        running=running,
        devices=_describe_devices(engine.cluster, blocks.readings, running),
        trouble=" ".join(filter(None, troubles)),
    )


def _describe_waiting(job: Job, reason: Reason, dispatcher: Dispatcher) -> dict[str, Any]:
    progress = dispatcher.progress(job.id)
    return {
        **_describe_job(job),
        "reason": reason.code,
        "why": reason.summary,
        "fix": reason.fix,
        "attempts": progress.attempts,
        "preemptions": progress.preemptions,
    }


def _describe_running(running: Running, preemption: str) -> dict[str, Any]:
    return {
        **_describe_job(running.job),
        "since": running.since,
        "attempt": running.attempt,
        "policy": running.policy,
        "nodes": list(running.nodes),
        "devices": [device.id for device in running.devices],
        "stopping": preemption,
    }


def _describe_job(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "user": job.user,
        "gpus": job.gpus,
        "priority": job.priority,
        "submitted": job.submitted,
    }


def _describe_devices(
    cluster: Cluster, readings: dict[str, Reading], running: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    holders: dict[str, list[str]] = {}
    for job in running:
        for device_id in job["devices"]:
            holders.setdefault(device_id, []).append(job["name"])
    described = []
    for state in cluster.devices.values():
        reading = readings.get(state.device.id) or Reading(state.device.id)
        node = cluster.nodes.get(state.device.node)
        described.append(
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
    return described
