"""Where the server of `gpu-flows up` is: a file in the home folder that commands in other terminals read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_flows.common import processes
from gpu_flows.common.files import write_atomically
from gpu_flows.config import paths


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that gpu-flows uses, and the process whose life shows that it still does: the server itself,
    or the command that uses a server of someone else's."""

    api_url: str
    home: str  # where the status of its pools and the warehouse are; `gpu-flows demo` has a home of its own
    command: str  # the command line that starts it again
    pid: int
    started: str
    host: str

    @classmethod
    def of(cls, api_url: str, home: Path, command: str, pid: int) -> RunningServer:
        return cls(api_url, str(home), command, pid, processes.start_time(pid), socket.gethostname())

    @property
    def is_alive(self) -> bool:
        return processes.is_alive(self.pid, self.started)


def find_running_server() -> RunningServer | None:
    """Return what the last `gpu-flows up` of this machine has left, alive or not; None after a clean end."""
    found = _read(_path(paths.home()))
    return found if found and found.host == socket.gethostname() else None  # machines may share the home


@contextmanager
def announced(server: RunningServer, home: Path) -> Iterator[bool]:
    """Let the commands of other terminals find the server, if they use that home folder. Yields whether they
    find it: one that was announced before and is alive keeps its place."""
    path = _path(home)
    earlier = _read(path)
    if earlier and earlier.is_alive:
        yield earlier.api_url == server.api_url
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(server)))
    try:
        yield True
    finally:
        if _read(path) == server:
            path.unlink(missing_ok=True)


def _read(path: Path) -> RunningServer | None:
    try:
        return RunningServer(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _path(home: Path) -> Path:
    return home / "server.json"
