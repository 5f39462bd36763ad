"""The spool: a directory of files in which facts wait to be loaded into the warehouse.

A recorder appends to one `*.open` file of its own and holds a lock on it. A complete file is renamed
to `*.ready`, and any recorder may load it. When a process dies, the kernel releases its lock, and the
next recorder adopts the file, without the incomplete last line that a kill may have left.

A fact is one line of JSON with field names as keys, so files of an older version stay readable.
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
FILE_BYTES = 16 * 2**20  # about 100,000 samples, so that loading one file is a short transaction


class Spool:
    """One recorder's access to the directory. Safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = Lock()
        self._path: Path | None = None  # the file being written; None before the first fact
        self._file = -1
        self._size = 0

    def append(self, facts: Iterable[Fact]) -> None:
        """Write all facts, or none, to the operating system. Raises OSError if that fails."""
        data = b"".join(map(encode, facts))
        with self._lock:
            self._open_for_writing()
            try:
                _write_all(self._file, data)
            except OSError:
                os.ftruncate(self._file, self._size)  # the caller keeps the whole batch and retries it
                raise
            self._size += len(data)
            if self._size >= FILE_BYTES:
                self._finish()

    def rotate(self) -> None:
        """Make everything that was appended so far ready to be loaded."""
        with self._lock:
            self._finish()

    def ready(self) -> list[Path]:
        """Return the files to load, oldest first."""
        return self._files(READY)

    def holds_facts(self) -> bool:
        """Adopt the files of dead processes, and return whether there is anything to load."""
        for path in self._files(OPEN):
            if path != self._path:
                with suppress(BlockingIOError, FileNotFoundError):  # its writer lives, or finished it
                    _adopt(path)
        return self._size > 0 or bool(self.ready())

    def close(self) -> None:
        """Finish the current file, so that the next recorder can load it."""
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
            # Another recorder may have adopted the file before it was locked: then try a new one.
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
        with suppress(FileNotFoundError):  # the directory was emptied meanwhile
            if self._size:
                self._path.rename(self._path.with_suffix(READY))
            else:
                self._path.unlink()
        os.close(self._file)  # this also releases the lock
        self._path, self._file, self._size = None, -1, 0


def encode(fact: Fact) -> bytes:
    """Return the fact as one line of JSON. Never fails, whatever numbers or strings the fact holds."""
    values = {name: _encodable(getattr(fact, name)) for name in fact.__dataclass_fields__}
    line = json.dumps({"table": fact.table, **values}, separators=(",", ":"), ensure_ascii=False)
    return line.encode("utf-8", "replace") + b"\n"


def _encodable(value: object) -> object:
    """Return the value, or None for NaN and infinity, which JSON cannot represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _adopt(path: Path) -> None:
    """Finish the file of a dead process. Raises BlockingIOError if its writer is alive."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        complete = file.read().rfind(b"\n") + 1
        file.truncate(complete)
        if complete:
            path.rename(path.with_suffix(READY))
        else:
            path.unlink()
