"""The store of what a pool keeps of a job between its attempts: its checkpoints and its progress.

    checkpoints/JOB    the job's own directory, the same for all its attempts
    jobs/JOB.json      its progress, the attempt that is being preempted, its raised memory bound, and when
                       the job ended
    removed/JOB        checkpoints that nobody needs any more, until they are removed

A record is written before a job is asked to stop, so that the next worker can complete the preemption if this
one is killed. Checkpoints in the pool's folder are removed a week after their job ended, because a failed run
may be started again by hand and continue; an empty directory is removed right away. Directories under a
`checkpoint_root` belong to their owner and are never removed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_flows.common.files import write_atomically
from gpu_flows.dispatch.memory_raises import Raise
from gpu_flows.dispatch.preemption import Preemption
from gpu_flows.schedulers.model import NO_PROGRESS, Progress

KEEP_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is known of one job."""

    progress: Progress = NO_PROGRESS
    preempted_attempt: int = 0  # the attempt that was asked to stop; 0 means none
    preemption: Preemption | None = None
    ended: float | None = None
    expected_s: float | None = None  # its time on devices, corrected by its progress
    memory: Raise | None = None  # set if it ran out of GPU memory


UNKNOWN_JOB = JobRecord()


class JobStore:
    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.pool_folder = folder
        self._checkpoints, self._folder, self._clock = folder / "checkpoints", folder / "jobs", clock
        self._removed = folder / "removed"
        for path in (self._checkpoints, self._folder, self._removed):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        self.load()

    def load(self) -> None:
        """Read all records. To be called again after another worker has served the pool."""
        self._records = {path.stem: record for path in self._folder.glob("*.json") if (record := _read(path))}

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

    def save_progress(self, job_id: str, progress: Progress, expected_s: float | None = None) -> None:
        """Store the progress of a job that has stopped and waits again, and the time on devices that its
        progress let expect."""
        self._save(job_id, JobRecord(progress, expected_s=expected_s, memory=self._get(job_id).memory))

    def load_progress(self, job_id: str) -> Progress:
        return self._get(job_id).progress

    def load_expected(self, job_id: str) -> float | None:
        """Return the time on devices that the job's progress let expect; None if it told none."""
        return self._get(job_id).expected_s

    def will_continue(self, job_id: str) -> bool:
        """Whether the job was preempted and waits for its next attempt."""
        record = self._get(job_id)
        return record.ended is None and record.progress.attempts > 0

    # -- memory -------------------------------------------------------------------------------

    def save_raise(self, job_id: str, raised: Raise) -> None:
        """Store the raised memory bound of a job that is about to wait again."""
        self._save(job_id, replace(self._get(job_id), memory=raised))

    def load_raise(self, job_id: str) -> Raise | None:
        """Return the raised memory bound of a job; None if it has none."""
        return self._get(job_id).memory

    # -- finish -------------------------------------------------------------------------------

    def finish(self, job_id: str) -> None:
        """Store that the job has ended, and remove what is no longer needed."""
        with contextlib.suppress(OSError):
            (self._checkpoints / job_id).rmdir()
        if (self._checkpoints / job_id).exists():
            self._save(job_id, JobRecord(ended=self._clock()))
        else:
            self._remove(job_id)

    def retire_old(self) -> None:
        """Take the checkpoints of jobs that ended long ago out of use. Does not block: `remove_retired`
        removes them."""
        now = self._clock()
        ended = [(job_id, record.ended) for job_id, record in self._records.items() if record.ended]
        for job_id, at in ended:
            if now - at > KEEP_S:
                with contextlib.suppress(OSError):
                    os.replace(self._checkpoints / job_id, self._removed / f"{job_id}.{now:.0f}")
                self._remove(job_id)

    def remove_retired(self) -> None:
        """Remove what was taken out of use. Blocks, and may run in another thread."""
        for directory in self._removed.iterdir():
            shutil.rmtree(directory, ignore_errors=True)

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
            with contextlib.suppress(OSError):
                (self._folder / f"{job_id}.json").unlink(missing_ok=True)


def _read(path: Path) -> JobRecord | None:
    """Return the stored record, or None if the file is incomplete."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        preemption = stored["preemption"]
        if preemption:
            preemption = Preemption(**{**preemption, "room_for": tuple(preemption["room_for"])})
        memory = stored.get("memory")  # older workers did not store it
        return JobRecord(
            Progress(**stored["progress"]),
            stored["preempted_attempt"],
            preemption,
            stored["ended"],
            stored.get("expected_s"),
            Raise(**memory) if memory else None,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
