"""The store of what a pool keeps of a job between its attempts: its checkpoints and its progress.

    checkpoints/JOB    the job's own directory, the same for all its attempts
    jobs/JOB.json      its progress, the attempt that is being preempted, and when the job ended

A record is written before a job is asked to stop, so that the next worker can complete the preemption if this
one is killed. Checkpoints in the pool's folder are removed a week after their job ended, because a failed run
may be started again by hand and continue; an empty directory is removed right away. Directories under a
`checkpoint_root` belong to their owner and are never removed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_flows.common.files import write_atomically
from gpu_flows.dispatch.preemption import Preemption
from gpu_flows.schedulers.model import NO_PROGRESS, Progress

KEEP_S = 7 * 24 * 3600.0
SWEEP_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is known of one job."""

    progress: Progress = NO_PROGRESS
    preempted_attempt: int = 0  # the attempt that was asked to stop; 0 means none
    preemption: Preemption | None = None
    ended: float | None = None


UNKNOWN_JOB = JobRecord()


class JobStore:
    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._checkpoints, self._folder, self._clock = folder / "checkpoints", folder / "jobs", clock
        for path in (self._checkpoints, self._folder):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        self._records = {path.stem: record for path in self._folder.glob("*.json") if (record := _read(path))}
        self._swept = 0.0
        self._sweep()

    # -- start --------------------------------------------------------------------------------

    def make_checkpoint_directory(self, job_id: str, root: str = "") -> Path:
        """Return the directory for the job's checkpoints, and create it if needed. Raises OSError."""
        directory = (Path(root) if root else self._checkpoints) / job_id
        directory.mkdir(mode=0o700, exist_ok=True)
        if directory.is_symlink():  # a job that can write to the root could redirect the worker anywhere
            raise OSError(errno.ELOOP, "it is a link", str(directory))
        if self._get(job_id).ended:  # the job runs again after its end
            self._remove(job_id)
        return directory

    # -- preempt ------------------------------------------------------------------------------

    def save_preemption(self, job_id: str, attempt: int, preemption: Preemption) -> None:
        """Store that the attempt is about to be asked to stop."""
        self._save(job_id, replace(self._get(job_id), preempted_attempt=attempt, preemption=preemption))

    def load_preemption(self, job_id: str, attempt: int) -> Preemption | None:
        """Return why this attempt was asked to stop, or None if it was not."""
        record = self._get(job_id)
        return record.preemption if record.preempted_attempt == attempt else None

    def save_progress(self, job_id: str, progress: Progress) -> None:
        """Store the progress of a job that has stopped and waits again."""
        self._save(job_id, JobRecord(progress))

    def load_progress(self, job_id: str) -> Progress:
        return self._get(job_id).progress

    def will_continue(self, job_id: str) -> bool:
        """Whether the job was preempted and waits for its next attempt."""
        record = self._get(job_id)
        return record.ended is None and record.progress.attempts > 0

    # -- finish -------------------------------------------------------------------------------

    def finish(self, job_id: str) -> None:
        """Store that the job has ended, and remove what is no longer needed."""
        with contextlib.suppress(OSError):
            (self._checkpoints / job_id).rmdir()
        if (self._checkpoints / job_id).exists():
            self._save(job_id, JobRecord(ended=self._clock()))
        else:
            self._remove(job_id)
        self._sweep()

    def _sweep(self) -> None:
        """Remove the checkpoints of jobs that ended long ago."""
        now = self._clock()
        if now - self._swept < SWEEP_EVERY_S:
            return
        self._swept = now
        old = [
            job_id for job_id, record in self._records.items() if record.ended and now - record.ended > KEEP_S
        ]
        for job_id in old:
            shutil.rmtree(self._checkpoints / job_id, ignore_errors=True)
            self._remove(job_id)

    # -- records ------------------------------------------------------------------------------

    def _get(self, job_id: str) -> JobRecord:
        return self._records.get(job_id, UNKNOWN_JOB)

    def _save(self, job_id: str, record: JobRecord) -> None:
        """Keep the record in memory and on disk. A full disk must not stop the pool; only the next worker
        then knows less."""
        self._records[job_id] = record
        with contextlib.suppress(OSError):
            write_atomically(self._folder / f"{job_id}.json", json.dumps(asdict(record)))

    def _remove(self, job_id: str) -> None:
        if self._records.pop(job_id, None) is not None:
            (self._folder / f"{job_id}.json").unlink(missing_ok=True)


def _read(path: Path) -> JobRecord | None:
    """Return the stored record, or None if the file is incomplete."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        preemption = stored["preemption"]
        if preemption:
            preemption = Preemption(**{**preemption, "room_for": tuple(preemption["room_for"])})
        return JobRecord(
            Progress(**stored["progress"]), stored["preempted_attempt"], preemption, stored["ended"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
