"""What is kept on disk of each attempt: a folder that is created before anything starts.

    attempts/ID/attempt.json   the launch, without its secrets
    attempts/ID/starting       exists once the command may have started
    attempts/ID/intent         why the attempt was asked to stop
    ended/ID/                  the same folder, after the attempt's end was recorded everywhere

A runtime may keep further files in the folder of its attempt.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from gpu_flows.common.files import write_atomically
from gpu_flows.runtimes.base import Container, Launch, LaunchError, Mount
from gpu_flows.runtimes.entry import INTENT_FILE
from gpu_flows.runtimes.supervisor import LAUNCH_FILE
from gpu_flows.schedulers.model import Device, Job

log = logging.getLogger(__name__)

_STARTING_FILE = "starting"
_KEEP_ENDED_S = 7 * 24 * 3600.0


class AttemptStore:
    """The attempts of one pool. An attempt is open until `mark_ended`."""

    def __init__(self, folder: Path) -> None:
        self.attempts = folder / "attempts"
        self.ended = folder / "ended"
        for path in (folder, self.attempts, self.ended):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)  # the output of jobs may be private
        self._last_attempts: dict[str, int] = {}  # by job id
        self.count_attempts()

    def count_attempts(self) -> None:
        """Count the attempts of all jobs. To be called again after another worker has served the pool."""
        numbers: dict[str, int] = {}
        for parent in (self.attempts, self.ended):
            for name in os.listdir(parent):
                job_id, number = _split(name)
                numbers[job_id] = max(number, numbers.get(job_id, 0))
        self._last_attempts = numbers

    def folder(self, launch: Launch) -> Path:
        return self.attempts / launch.id

    # -- from launch to end -------------------------------------------------------------------

    def create(self, launch: Launch) -> Path:
        """Create the folder of a new attempt. Raises FileExistsError if the attempt exists."""
        folder = self.folder(launch)
        try:
            folder.mkdir()
            write_atomically(folder / LAUNCH_FILE, dump_launch(launch), durable=True)
            self._last_attempts[launch.job.id] = max(launch.attempt, self.last_attempt(launch.job.id))
        except FileExistsError:
            raise
        except OSError as error:
            self.discard(launch)
            raise LaunchError(f"{folder} cannot be written ({error}); free some space on its disk.") from None
        return folder

    def discard(self, launch: Launch) -> None:
        """Remove an attempt whose command was never started."""
        shutil.rmtree(self.folder(launch), ignore_errors=True)

    def mark_started(self, launch: Launch) -> None:
        """Record that the command may have started. To be called just before the start."""
        (self.folder(launch) / _STARTING_FILE).touch()

    def mark_stop_requested(self, launch: Launch, intent: str) -> float | None:
        """Record the request to stop, and return the seconds since an earlier one; None for the first.

        A job that was asked before, perhaps by an earlier worker, must not be asked again: a second
        signal could interrupt the saving of its checkpoint.
        """
        path = self.folder(launch) / INTENT_FILE
        try:
            return max(0.0, time.time() - path.stat().st_mtime)
        except OSError:
            with contextlib.suppress(OSError):
                write_atomically(path, intent, durable=True)
            return None

    def mark_ended(self, launch: Launch) -> None:
        """Close the attempt: its end has been recorded everywhere."""
        try:
            os.replace(self.folder(launch), self.ended / launch.id)
        except OSError:
            if self.has_ended(launch.id):  # by an earlier call
                self.discard(launch)

    # -- questions ----------------------------------------------------------------------------

    def open_attempts(self) -> Iterator[tuple[Path, Launch]]:
        """Yield the folder and launch of every attempt that is not marked as ended."""
        for folder in sorted(self.attempts.iterdir()):
            if not (folder / LAUNCH_FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)  # the worker died before it launched anything
            elif launch := _load_launch(folder):
                yield folder, launch

    def has_started(self, attempt_id: str) -> bool:
        """Whether the attempt's command may have started."""
        return any((parent / attempt_id / _STARTING_FILE).exists() for parent in (self.attempts, self.ended))

    def has_ended(self, attempt_id: str) -> bool:
        """Whether the attempt is marked as ended."""
        return (self.ended / attempt_id).exists()

    def load_ended(self, attempt_id: str) -> Launch | None:
        """Return the launch of an ended attempt; None if there is no such attempt."""
        return _load_launch(self.ended / attempt_id) if self.has_ended(attempt_id) else None

    def last_attempt(self, job_id: str) -> int:
        """Return the highest attempt number of a job on this machine; 0 if it was never launched."""
        return self._last_attempts.get(job_id, 0)

    def remove_old(self) -> None:
        """Remove the folders of attempts that ended long ago. Blocks, and may run in another thread."""
        for folder in self.ended.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > _KEEP_ENDED_S:
                    shutil.rmtree(folder, ignore_errors=True)


def _split(attempt_id: str) -> tuple[str, int]:
    """Return job and number of an attempt."""
    job_id, _, number = attempt_id.rpartition(".")
    return job_id, int(number) if number.isdigit() else 0


def dump_launch(launch: Launch) -> str:
    """Return the launch as JSON, without variables and secrets."""
    content = asdict(launch) | {"env": {}}
    if content["container"]:
        content["container"] |= {"secrets": {}, "login": None}
    return json.dumps(content)


def parse_launch(text: str) -> Launch:
    """Return the launch that `dump_launch` wrote. Raises ValueError, KeyError or TypeError for other text."""
    content: dict[str, Any] = json.loads(text)
    known = {field.name for field in fields(Job) if field.init}  # Job computes its other fields
    job = {name: value for name, value in content["job"].items() if name in known}
    job |= {name: tuple(job[name]) for name in ("nodes", "models", "predicted") if name in job}
    container = content.get("container")
    if container:
        mounts = tuple(Mount(**mount) for mount in container["mounts"])
        container = Container(**{**container, "mounts": mounts})
    return Launch(
        **{
            **content,
            "job": Job(**job),
            "devices": tuple(Device(**device) for device in content["devices"]),
            "command": tuple(content["command"]),
            "container": container,
        }
    )


def _load_launch(folder: Path) -> Launch | None:
    try:
        return parse_launch((folder / LAUNCH_FILE).read_text())
    except (OSError, ValueError, KeyError, TypeError):
        log.exception("Attempt %s cannot be read; its folder is left unchanged.", folder.name)
        return None
