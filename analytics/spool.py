"""The spool: a directory of facts on their way into the warehouse.

A live recorder appends to one `*.open` file of its own, holding a lock on it. What is complete
is renamed to `*.ready`, and somebody drains it. When a process dies, the kernel drops its lock:
whoever comes next makes the orphan ready, without the torn last line a kill may have left.

A fact is one line of JSON, keyed by name, so files of an older version stay readable.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from uuid import uuid4

from gpu_flows.analytics.facts import Fact

OPEN, READY, UNREADABLE = ".open", ".ready", ".unreadable"
FILE_BYTES = 16 * 2**20  # about 100,000 samples: one file is always a short transaction


def encode(fact: Fact) -> bytes:
    """One line of JSON. Cannot fail, whatever odd numbers or strings a fact holds."""
    line: dict[str, object] = {"table": fact.table}
    for name in fact.__dataclass_fields__:
        line[name] = _plain(getattr(fact, name))
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _plain(value: object) -> object:
    """JSON knows neither NaN nor infinity: a reading like that tells nothing."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


class Spool:
    """One recorder's view of the directory. Safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = Lock()
        self._path: Path | None = None  # the file being written, None before the first fact
        self._file = -1
        self._size = 0

    def append(self, facts: Iterable[Fact]) -> None:
        """Hand all of them, or none, to the operating system. Raises OSError when it refuses."""
        data = b"".join(map(encode, facts))
        with self._lock:
            self._open_for_writing()
            try:
                _write_all(self._file, data)
            except OSError:
                os.ftruncate(self._file, self._size)  # half a batch would be read as a whole one
                raise
            self._size += len(data)
            if self._size >= FILE_BYTES:
                self._finish()

    def rotate(self) -> None:
        """What was appended so far becomes ready to drain."""
        with self._lock:
            self._finish()

    def ready(self) -> list[Path]:
        """The files to drain, oldest first."""
        return self._files(READY)

    def holds_facts(self) -> bool:
        """Whether there is anything to drain, after adopting what dead processes left open."""
        for path in self._files(OPEN):
            if path != self._path:
                with suppress(BlockingIOError, FileNotFoundError):  # alive, or gone meanwhile
                    _adopt(path)
        return self._size > 0 or bool(self.ready())

    def close(self) -> None:
        """What is left is ready for whoever comes next."""
        self.rotate()

    def _files(self, suffix: str) -> list[Path]:
        return sorted(self.directory.glob("*" + suffix))

    def _open_for_writing(self) -> None:
        if self._path is not None and os.fstat(self._file).st_nlink:
            return
        self._finish()
        self.directory.mkdir(parents=True, exist_ok=True)
        while True:
            path = self.directory / f"{time.time_ns():020d}-{uuid4().hex[:8]}{OPEN}"
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
            # Somebody looking for orphans may have caught the file before we locked it; try another.
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file).st_nlink:
                    self._path, self._file, self._size = path, file, 0
                    return
            os.close(file)

    def _finish(self) -> None:
        """Close the current file, if any, under its final name."""
        if self._path is None:
            return
        with suppress(FileNotFoundError):  # somebody emptied the directory
            if self._size:
                self._path.rename(self._path.with_suffix(READY))
            else:
                self._path.unlink()
        os.close(self._file)  # and with it the lock
        self._path, self._file, self._size = None, -1, 0


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _adopt(path: Path) -> None:
    """Take over one file, or raise BlockingIOError when its writer lives."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        if whole:
            path.rename(path.with_suffix(READY))
        else:
            path.unlink()
