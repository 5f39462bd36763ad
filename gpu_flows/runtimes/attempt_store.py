"""The attempt_store of attempts: a folder each, made before anything starts and named after the attempt.

    attempts/ID/attempt.json   what was to be launched, on which devices; no secrets
    ended/ID/                  the same, once the attempt's end has been noted everywhere

What else lies in a folder is its runtime's business.
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

from gpu_flows.runtimes.base import Container, Launch, LaunchError, Mount
from gpu_flows.runtimes.entry import INTENT_FILE
from gpu_flows.schedulers.model import Device, Job

log = logging.getLogger(__name__)

_KEEP_ENDED_S = 7 * 24 * 3600.0


class AttemptStore:
    def __init__(self, folder: Path) -> None:
        self.attempts = folder / "attempts"
        self.ended = folder / "ended"
        for path in (folder, self.attempts, self.ended):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)  # what jobs print is their owner's business
        self._sweep()

    def folder(self, launch: Launch) -> Path:
        return self.attempts / launch.id

    def enter(self, launch: Launch) -> Path:
        """A folder for a new attempt. FileExistsError if it was entered before."""
        folder = self.folder(launch)
        try:
            folder.mkdir()
        except FileExistsError:
            raise
        except OSError as error:
            raise LaunchError(f"{folder} cannot be made ({error}); make room for it.") from None
        try:
            write(folder / "attempt.json", stored(launch))
        except OSError as error:
            self.strike(launch)
            raise LaunchError(f"{folder} cannot be written ({error}); make room for it.") from None
        return folder

    def strike(self, launch: Launch) -> None:
        """It never came to be."""
        shutil.rmtree(self.folder(launch), ignore_errors=True)

    def note_start(self, launch: Launch) -> None:
        """From now on something of it may have run."""
        (self.folder(launch) / "starting").touch()

    def has_started(self, attempt: str) -> bool:
        """Whether anything of this attempt may have run."""
        return any((home / attempt / "starting").exists() for home in (self.attempts, self.ended))

    def note_stop(self, launch: Launch, intent: str) -> float | None:
        """Note beside the attempt that it is asked to stop, and why. How long ago it was, if it was before,
        by us or by a worker before us: then it is not asked again, which might cut its saving short."""
        path = self.folder(launch) / INTENT_FILE
        try:
            return max(0.0, time.time() - path.stat().st_mtime)
        except OSError:
            with contextlib.suppress(OSError):
                write(path, intent)
            return None

    def open_attempts(self) -> Iterator[tuple[Path, Launch]]:
        """Every attempt whose end has not been noted."""
        for folder in sorted(self.attempts.iterdir()):
            if not (folder / "attempt.json").exists():
                shutil.rmtree(folder, ignore_errors=True)  # its worker died before it launched anything
            elif launch := read(folder):
                yield folder, launch

    def has_ended(self, attempt: str) -> bool:
        """Whether this attempt's end has been noted."""
        return (self.ended / attempt).exists()

    def past(self, attempt: str) -> Launch | None:
        """What was launched as this attempt, if its end has been noted."""
        folder = self.ended / attempt
        return read(folder) if folder.exists() else None

    def close(self, launch: Launch) -> None:
        """Its end has been noted everywhere."""
        with contextlib.suppress(OSError):
            os.replace(self.folder(launch), self.ended / launch.id)

    def attempts_of(self, job_id: str) -> int:
        """The highest attempt number this machine has seen of a job."""
        names = [*self.attempts.glob(f"{job_id}.*"), *self.ended.glob(f"{job_id}.*")]
        return max((int(name.name.rpartition(".")[2]) for name in names), default=0)

    def _sweep(self) -> None:
        """Throw away the output of attempts that ended long ago."""
        for folder in self.ended.iterdir():
            if time.time() - folder.stat().st_mtime > _KEEP_ENDED_S:
                shutil.rmtree(folder, ignore_errors=True)


def stored(launch: Launch) -> str:
    """A launch as JSON, without what may be secret."""
    known = asdict(launch) | {"env": {}}
    if known["container"]:
        known["container"] |= {"secrets": {}, "login": None}
    return json.dumps(known)


def restored(text: str) -> Launch:
    """The launch that was stored. Raises ValueError, KeyError or TypeError for anything else."""
    known: dict[str, Any] = json.loads(text)
    given = {each.name for each in fields(Job) if each.init}  # the rest it works out by itself
    job = {name: value for name, value in known["job"].items() if name in given}
    job |= {"nodes": tuple(job["nodes"]), "models": tuple(job["models"])}
    container = known.get("container")
    if container:
        mounts = tuple(Mount(**mount) for mount in container["mounts"])
        container = Container(**{**container, "mounts": mounts})
    return Launch(
        **{
            **known,
            "job": Job(**job),
            "devices": tuple(Device(**device) for device in known["devices"]),
            "command": tuple(known["command"]),
            "container": container,
        }
    )


def read(folder: Path) -> Launch | None:
    """The launch entered in a folder."""
    try:
        return restored((folder / "attempt.json").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        log.exception("Attempt %s cannot be read; it is left as it is.", folder.name)
        return None


def write(path: Path, text: str) -> None:
    """The whole text or nothing, and on disk."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
