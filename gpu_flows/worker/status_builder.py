"""Collects the status of a pool from its dispatcher, its blocks and its devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from gpu_flows.config.block_follower import BlockFollower
from gpu_flows.devices.base import Reading
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.prefect_api.waiting_notes import WaitingJobs
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Reason, Running
from gpu_flows.schedulers.reasons import class_of
from gpu_flows.worker.status import Status, WaitingCount, describe_place

MOST_LISTED = 2000  # jobs beyond this place in the queue are not listed


class CountedJobs(WaitingJobs, Protocol):
    """The waiting jobs of a pool, which can be counted without a look at each."""

    def count(self) -> WaitingCount: ...


def build_status(
    pool: str,
    worker: str,
    dispatcher: Dispatcher,
    waiting: CountedJobs,
    blocks: BlockFollower,
    recorder_trouble: str,
    describe_needs: Callable[[Job], dict[str, Any]] = lambda job: {},
    describe_progress: Callable[[str], dict[str, Any] | None] = lambda job_id: None,
    describe_forecast: Callable[[str], dict[str, Any]] = lambda job_id: {},
    describe_shadow: Callable[[str], dict[str, Any]] = lambda name: {},
    no_forecast: str = "",
) -> Status:
    """Return what the pool's worker knows now. `describe_needs` tells how much memory and time a job needs,
    and whether that was stated or predicted; `describe_progress` tells how far a running job is, and
    `describe_forecast` when a job starts and ends; `describe_shadow` tells whether a shadow plans, and
    `no_forecast` why nothing is forecast."""
    engine, now = dispatcher.engine, time.time()
    running = [
        {
            **_describe_running(job, preemption, dispatcher, now),
            **describe_needs(job.job),
            "progress": describe_progress(job.job.id),
            **describe_forecast(job.job.id),
        }
        for job, preemption in dispatcher.occupants()
    ]
    listed = [
        _describe_waiting(job, reason, dispatcher, now) | describe_needs(job) | describe_forecast(job.id)
        for job, reason in waiting.reasons(MOST_LISTED)
    ]
    cluster_troubles = (
        blocks.cluster_error,
        blocks.unknown_drained,
        blocks.network_error,
        blocks.missing_devices,
    )
    return Status(
        pool,
        worker,
        now,
        policy={
            "name": engine.policy.name,
            "options": blocks.policy_options,
            "serving": engine.active_policy.name,
            "error": engine.policy_error or blocks.policy_error,
            "remark": engine.active_policy.remark,
            "shadows": [describe_shadow(name) for name in blocks.shadows],
            "shadows_error": blocks.shadows_error,
            "saved": blocks.policy_saved.isoformat() if blocks.policy_saved else None,
        },
        waiting=listed,
        running=running,
        devices=_describe_devices(engine.cluster, blocks.readings, running),
        cluster_trouble=" ".join(filter(None, cluster_troubles)),
        recorder_trouble=recorder_trouble,
        whole=asdict(waiting.count()) if len(listed) == MOST_LISTED else {},
        no_forecast=no_forecast,
    )


def _describe_waiting(job: Job, reason: Reason, dispatcher: Dispatcher, now: float) -> dict[str, Any]:
    progress, declined = dispatcher.progress(job.id), dispatcher.engine.declined(job.id)
    return {
        **_describe_job(job),
        "waited": max(0.0, now - job.submitted - progress.ran_s),
        "ran": progress.ran_s,
        "reason": reason.code,
        "class": class_of(reason.code),
        "why": reason.summary,
        "fix": reason.fix,
        "attempts": progress.attempts,
        "preemptions": progress.preemptions,
        "offer": declined.offer.figures() if declined else None,
    }


def _describe_running(
    running: Running, preemption: str, dispatcher: Dispatcher, now: float
) -> dict[str, Any]:
    ran_before = dispatcher.progress(running.job.id).ran_s
    return {
        **_describe_job(running.job),
        "waited": max(0.0, running.since - running.job.submitted - ran_before),
        "ran": ran_before + max(0.0, now - running.since),
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
                **describe_place(node.node if node else None, state.device.index),
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
