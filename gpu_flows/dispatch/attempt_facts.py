"""The facts that the dispatcher records about an attempt, and the progress of a job that was preempted.

Only the job knows how much of an attempt was saved. It states this in its journal, or by the exit code that
means "saved and stopped". Without either, nothing counts as saved.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    Fact,
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
    attempt: Attempt, end: End, ended: float, outcome: str, detail: str, preemption: Preemption | None
) -> list[Fact]:
    """Return the facts of an ended attempt. A requested preemption is recorded even if the attempt ended in
    another way."""
    job_id, number = attempt.launch.job.id, attempt.launch.attempt
    memory = end.oom_killed, end.peak_memory_mb
    facts: list[Fact] = [AttemptEnded(job_id, number, ended, outcome, end.exit_code, detail, *memory)]
    if preemption:
        room_for = json.dumps(preemption.room_for)
        requested, kind, policy = preemption.requested, preemption.kind, preemption.policy
        facts.append(AttemptInterrupted(job_id, number, requested, ended, kind, policy, room_for))
    return facts


def measure_saved_work(attempt: Attempt, ended: float, exit_code: int | None, continues: bool) -> SavedWork:
    """Return what an ended attempt saved and lost, according to the job's journal and exit code. Unsaved work
    counts as lost only if the job continues."""
    launch, began = attempt.launch, attempt.started
    entries = [entry for entry in _read_journal(launch) if entry.attempt == launch.attempt]
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


def _read_journal(launch: Launch) -> list[contract.Entry]:
    return contract.read_journal(Path(launch.checkpoints)) if launch.checkpoints else []


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
