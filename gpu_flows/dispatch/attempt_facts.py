"""The facts that the dispatcher records about an attempt, and the progress of a job that was preempted.

Only the job knows how much of an attempt was saved. It states this in its journal, or by the exit code that
means "saved and stopped". Without either, nothing counts as saved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    Fact,
    MemoryPeak,
    SavedWork,
)
from gpu_flows.checkpoints import contract
from gpu_flows.dispatch.preemption import Kind, Preemption
from gpu_flows.runtimes.base import Attempt, End, Launch
from gpu_flows.schedulers.model import Progress, Running


def describe_start(attempt: Attempt) -> list[Fact]:
    """Return the facts of a launched attempt: its start, and one allocation per device."""
    launch = attempt.launch
    job_id, number = launch.job.id, launch.attempt
    nodes = json.dumps(list(dict.fromkeys(device.node for device in launch.devices)))
    return [
        AttemptStarted(job_id, number, launch.policy, launch.runtime, nodes, launch.planned, attempt.started),
        *(
            Allocated(
                job_id,
                number,
                device.id,
                device.node,
                launch.job.memory_mb or device.memory_mb,
                attempt.started,
            )
            for device in launch.devices
        ),
    ]


def describe_end(
    attempt: Attempt,
    end: End,
    ended: float,
    outcome: str,
    detail: str,
    preemption: Preemption | None,
    released: float | None = None,
    reported: float | None = None,
) -> list[Fact]:
    """Return the facts of an ended attempt: when it released its devices, and when its end was reported. A
    requested preemption is recorded even if the attempt ended in another way. The exit code is left out where
    it would contradict the outcome."""
    job_id, number = attempt.launch.job.id, attempt.launch.attempt
    memory = end.oom_killed, end.peak_memory_mb
    # The process of a flow ends with 0 also if the flow has failed.
    exit_code = None if outcome == "failed" and end.exit_code == 0 else end.exit_code
    facts: list[Fact] = [
        AttemptEnded(job_id, number, ended, outcome, exit_code, detail, *memory, released=released)
    ]
    if preemption and preemption.kind != "suspended":  # that is a person's decision, not the policy's
        room_for = json.dumps(preemption.room_for)
        requested, kind, policy = preemption.requested, preemption.kind, preemption.policy
        facts.append(
            AttemptInterrupted(job_id, number, requested, ended, kind, policy, room_for, requeued=reported)
        )
    return facts


def measure_saved_work(attempt: Attempt, ended: float, exit_code: int | None, continues: bool) -> SavedWork:
    """Return what an ended attempt saved and lost, according to the job's journal and exit code. Unsaved work
    counts as lost only if the job continues."""
    launch, began = attempt.launch, attempt.started
    entries = _read_journal(launch)
    saves = [entry for entry in entries if entry.event == "saved"]
    restored = next((entry for entry in entries if entry.event == "restored"), None)
    all_saved = exit_code == contract.CHECKPOINTED or any(entry.event == "left" for entry in entries)
    kept_until = ended if all_saved or not continues else max((entry.time for entry in saves), default=began)
    return SavedWork(
        job_id=launch.job.id,
        attempt=launch.attempt,
        saves=len(saves),
        save_s=sum(entry.seconds for entry in saves),
        saved_bytes=round(saves[-1].bytes) if saves else 0,
        last_saved=saves[-1].time if saves else None,
        last_step=round(max((entry.step for entry in entries), default=0)),
        restored=restored.time if restored else None,
        restore_s=restored.seconds if restored else None,
        restored_step=round(restored.step) if restored else None,
        lost_s=ended - min(max(kept_until, began), ended),  # the clocks of job and worker may differ
    )


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """What can be learned from an attempt that has ended."""

    launch: Launch
    outcome: str  # as in the facts
    ran_s: float  # over all attempts of the job
    peak_mb: float | None = None  # on the device on which it used most
    needed_mb: float | None = None  # of a job that ran out of memory: at least so much


def find_peaks(launch: Launch, measured: Mapping[str, float]) -> list[MemoryPeak]:
    """Return the most memory that an attempt used on each device: `measured` by the driver, or reported by
    the job in its journal, whichever is more. A sample may miss a peak, and a job does not see everything.
    No report counts for more than its device has."""
    reports = [entry.bytes for entry in _read_journal(launch) if entry.event == "memory"]
    reported_mb = max(reports, default=0) / 2**20
    peaks = []
    for device in launch.devices:
        by_driver = measured.get(device.id, 0.0)
        by_job = min(reported_mb, device.memory_mb or reported_mb)
        if peak_mb := max(by_driver, by_job):
            source = "nvml" if by_driver >= by_job else "reported"
            peaks.append(MemoryPeak(launch.job.id, launch.attempt, device.id, peak_mb, source))
    return peaks


def _read_journal(launch: Launch) -> list[contract.Entry]:
    """Return the entries of this attempt."""
    entries = contract.read_journal(Path(launch.checkpoints)) if launch.checkpoints else []
    return [entry for entry in entries if entry.attempt == launch.attempt]


def compute_progress(
    attempt: Attempt, before: Progress, saved: SavedWork, ended: float, kind: Kind
) -> Progress:
    """Return the progress of a job after a preempted attempt. Only saved work counts as done."""
    launch = attempt.launch
    ran = Running(
        launch.job, launch.devices, attempt.started, launch.attempt, before=before, rated=attempt.started
    ).progress(ended)
    return replace(
        ran,
        work_s=max(before.work_s, ran.work_s - saved.lost_s),
        preemptions=before.preemptions + (kind == "preempted"),
    )
