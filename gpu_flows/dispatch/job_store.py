"""What a pool keeps of a job between its attempts: its checkpoints, and how far it had come.

    checkpoints/JOB         the job's own directory, the same for all its attempts
    job_store/JOB.json     what it has behind it, whether it was asked to leave, when it ended for good

Written at once and whole, so that a worker which is killed finds out what the one before it was
about to do. A week after a job ended for good, whatever it left in the pool's folder is removed, and
an empty directory at once: a run that failed may be started again by hand and go on. Directories
under a root of the job's own choice are its owner's, and are never removed.
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

from gpu_flows.dispatch.preemption import Preemption
from gpu_flows.schedulers.model import NO_PROGRESS, Progress

KEEP_S = 7 * 24 * 3600.0
SWEEP_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Note:
    """What is known of one job."""

    progress: Progress = NO_PROGRESS
    leaving: int = 0  # the attempt that was asked to leave; 0: none
    leave: Preemption | None = None
    ended: float | None = None


NOTHING = Note()


class JobStore:
    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._checkpoints, self._folder, self._clock = folder / "checkpoints", folder / "job_store", clock
        for path in (self._checkpoints, self._folder):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        self._notes = {path.stem: note for path in self._folder.glob("*.json") if (note := _read(path))}
        self._swept = 0.0
        self._sweep()

    # -- checkpoints --------------------------------------------------------------------------

    def checkpoints(self, job_id: str, root: str = "") -> Path:
        """The directory in which the job keeps its checkpoints, made if it is not there. Raises OSError."""
        directory = (Path(root) if root else self._checkpoints) / job_id
        directory.mkdir(mode=0o700, exist_ok=True)
        if directory.is_symlink():  # the job may write above it, and would lead us anywhere
            raise OSError(errno.ELOOP, "it is a link", str(directory))
        if self._notes.get(job_id, NOTHING).ended:  # it is run again after its end
            self._drop(job_id)
        return directory

    # -- how far it had come ------------------------------------------------------------------

    def progress(self, job_id: str) -> Progress:
        return self._notes.get(job_id, NOTHING).progress

    def expects(self, job_id: str) -> bool:
        """Whether the job has left and will go on."""
        note = self._notes.get(job_id, NOTHING)
        return note.ended is None and note.progress.attempts > 0

    def keep_progress(self, job_id: str, progress: Progress) -> None:
        """The job has left, with this much behind it."""
        self._write(job_id, Note(progress))

    def preemption_of(self, job_id: str, attempt: int) -> Preemption | None:
        """Why this attempt was asked to leave, if it was."""
        note = self._notes.get(job_id, NOTHING)
        return note.leave if note.leaving == attempt else None

    def save_preemption(self, job_id: str, attempt: int, leave: Preemption) -> None:
        """The attempt is about to be asked to leave."""
        self._write(job_id, replace(self._notes.get(job_id, NOTHING), leaving=attempt, leave=leave))

    # -- the end ------------------------------------------------------------------------------

    def ended(self, job_id: str) -> None:
        """The job will not run any more, unless somebody starts it again by hand."""
        with contextlib.suppress(OSError):
            (self._checkpoints / job_id).rmdir()
        if (self._checkpoints / job_id).exists():
            self._write(job_id, Note(ended=self._clock()))
        else:
            self._drop(job_id)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what jobs left that ended long ago."""
        now = self._clock()
        if now - self._swept < SWEEP_EVERY_S:
            return
        self._swept = now
        old = [job_id for job_id, note in self._notes.items() if note.ended and now - note.ended > KEEP_S]
        for job_id in old:
            shutil.rmtree(self._checkpoints / job_id, ignore_errors=True)
            self._drop(job_id)

    def _write(self, job_id: str, note: Note) -> None:
        """A disk that takes nothing is no reason to stop: then only the next worker knows less."""
        self._notes[job_id] = note
        path = self._folder / f"{job_id}.json"
        with contextlib.suppress(OSError):
            path.with_suffix(".new").write_text(json.dumps(asdict(note)))
            os.replace(path.with_suffix(".new"), path)

    def _drop(self, job_id: str) -> None:
        if self._notes.pop(job_id, None) is not None:
            (self._folder / f"{job_id}.json").unlink(missing_ok=True)


def _read(path: Path) -> Note | None:
    try:
        told: dict[str, Any] = json.loads(path.read_text())
        leave = told["leave"] and Preemption(
            **{**told["leave"], "room_for": tuple(told["leave"]["room_for"])}
        )
        return Note(Progress(**told["progress"]), told["leaving"], leave, told["ended"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
