"""What the dispatcher writes down about an attempt, and what a job that left has behind it.

How much of an attempt was saved only the job knows. It tells in its journal, or by the exit code
that means "saved, and left"; who tells nothing has saved nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gpu_flows.analytics.facts import Allocated, AttemptEnded, AttemptStarted, Departed, Fact, SavedWork
from gpu_flows.checkpoints import contract
from gpu_flows.dispatch.preemption import Kind, Preemption
from gpu_flows.runtimes.base import Attempt, End, Launch
from gpu_flows.schedulers.model import Progress, Running


def start_facts(attempt: Attempt) -> list[Fact]:
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


def end_facts(
    attempt: Attempt, end: End, ended: float, outcome: str, detail: str, leave: Preemption | None
) -> list[Fact]:
    """`leave` is what it was asked to leave for, if it was, however it ended then."""
    job_id, number = attempt.launch.job.id, attempt.launch.attempt
    memory = end.oom_killed, end.peak_memory_mb
    facts: list[Fact] = [AttemptEnded(job_id, number, ended, outcome, end.exit_code, detail, *memory)]
    if leave:
        room_for = json.dumps(leave.room_for)
        facts.append(Departed(job_id, number, leave.asked, ended, leave.kind, leave.policy, room_for))
    return facts


def saved_work(attempt: Attempt, ended: float, exit_code: int | None, goes_on: bool) -> SavedWork:
    """What the job's journal tells of an attempt that has ended. Without a journal, and without the exit
    code that says so, nothing of it was saved; which is a loss if the job goes on."""
    launch, began = attempt.launch, attempt.started
    told = [entry for entry in _journal(launch) if entry.attempt == launch.attempt]
    saves = [entry for entry in told if entry.event == "saved"]
    restored = next((entry for entry in told if entry.event == "restored"), None)
    left = exit_code == contract.CHECKPOINTED or any(entry.event == "left" for entry in told)
    kept_until = ended if left or not goes_on else max((entry.time for entry in saves), default=began)
    return SavedWork(
        job_id=launch.job.id,
        attempt=launch.attempt,
        saves=len(saves),
        save_s=sum(entry.seconds for entry in saves),
        saved_bytes=round(saves[-1].bytes) if saves else 0,
        last_saved=saves[-1].time if saves else None,
        last_step=round(max((entry.step for entry in told), default=0)),
        restored=restored.time if restored else None,
        restore_s=restored.seconds if restored else None,
        restored_step=round(restored.step) if restored else None,
        lost_s=ended - min(max(kept_until, began), ended),  # the clocks of job and worker may differ
    )


def _journal(launch: Launch) -> list[contract.Entry]:
    return contract.read_journal(Path(launch.checkpoints)) if launch.checkpoints else []


def progress_of(attempt: Attempt, before: Progress, saved: SavedWork, ended: float, kind: Kind) -> Progress:
    """What a job has behind it that has left, of which only what was saved counts as done."""
    launch = attempt.launch
    ran = Running(
        launch.job, launch.devices, attempt.started, launch.attempt, before=before, rated=attempt.started
    ).progress(ended)
    return replace(
        ran,
        work_s=max(before.work_s, ran.work_s - saved.lost_s),
        preemptions=before.preemptions + (kind == "preempted"),
    )
