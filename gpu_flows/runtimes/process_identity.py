"""Recognises the processes of attempts: by pid, start time, boot and host, or by the attempt's name.

The supervisor of an attempt is identified by its pid file, so that a reused pid is never mistaken for it.
Everything below it carries the attempt's name in its environment, unless the job removed it there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpu_flows.runtimes.supervisor import identify

_SUPERVISOR_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A supervisor, as it describes itself in its pid file."""

    pid: int
    started: str  # the kernel's start time and the boot id; empty on systems without /proc
    host: str

    @property
    def is_foreign(self) -> bool:
        """Whether it runs on another machine, which shares the folder with this one."""
        return self.host != os.uname().nodename

    def is_alive(self, attempt: str) -> bool:
        """Whether it runs on this machine."""
        with contextlib.suppress(psutil.Error):
            if psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE:
                if self.started:
                    return self == identity_of(self.pid)
                return _read_attempt(self.pid) == attempt
        return False


def identity_of(pid: int) -> ProcessIdentity:
    """Return the identity of a process of this machine."""
    return _parse(identify(pid))


def read_identity(pid_file: Path) -> ProcessIdentity:
    """Raises OSError or ValueError if there is none."""
    return _parse(pid_file.read_text())


def _parse(text: str) -> ProcessIdentity:
    # Files of gpu-flows before 0.4 do not name the host.
    pid, start_time, boot, host = [*text.split(), *[""] * 4][:4]
    started = f"{start_time} {boot}".strip(" -")
    return ProcessIdentity(int(pid), started, host or os.uname().nodename)


def kill_all(home: Path) -> int:
    """Kill every job that was launched under this gpu-flows home, and return their number."""
    attempts = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            env = process.environ()
            folder = env.get("GPU_FLOWS_ATTEMPT_FOLDER", "")
            if folder and Path(folder).is_relative_to(home):
                attempts.add((env["GPU_FLOWS_ATTEMPT"], os.getsid(process.pid)))
    for attempt, session in attempts:
        kill_attempt(attempt, session)
    return len({attempt for attempt, _ in attempts})


def kill_attempt(attempt: str, session: int | None) -> None:
    """Kill all processes of the attempt's session, and those of other sessions that carry its name:
    torchrun starts its workers in sessions of their own.

    The supervisor, which leads the session, is spared at first. It kills what only it knows to be below it,
    and ends by itself.
    """
    if session and psutil.pid_exists(session):
        _kill(attempt, session, spared=session)
        deadline = time.monotonic() + _SUPERVISOR_TIMEOUT_S
        while _is_running(session) and time.monotonic() < deadline:
            time.sleep(0.01)
    _kill(attempt, session, spared=None)


def _kill(attempt: str, session: int | None, spared: int | None) -> None:
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            belongs = (session and os.getsid(pid) == session) or _read_attempt(pid) == attempt
            if belongs and pid != spared:
                os.kill(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _read_attempt(pid: int) -> str:
    """Return the attempt that a process carries in its environment. Reads /proc where there is one: this
    is called for every process of the machine while devices wait to be released, and psutil is slower."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except FileNotFoundError:
        return psutil.Process(pid).environ().get("GPU_FLOWS_ATTEMPT", "")
    name = b"GPU_FLOWS_ATTEMPT="
    return next((value[len(name) :].decode() for value in variables if value.startswith(name)), "")
