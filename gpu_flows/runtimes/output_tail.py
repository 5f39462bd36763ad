"""Reads what an attempt printed lately, for those who follow its progress and do not need every line."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 65_536  # of the newest output at a time, and of the beginning
_ENDS = re.compile(rb"[\r\n]+")  # a progress bar overwrites itself without a newline


class OutputTail:
    """Reads the newest lines of a growing file, and those at its beginning, which tell what the job will
    do."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._unfinished = b""

    def read(self) -> list[str]:
        """Return the lines and states of progress bars that were printed since the last call, or the newest
        of them. What may be the first half of a line is returned when nothing has followed it."""
        content = self._unfinished
        with contextlib.suppress(OSError), open_output(self._path) as file:
            size = os.fstat(file).st_size
            self._offset = min(self._offset, size)  # the job may have truncated it
            if size == self._offset:
                self._unfinished = b""
                return _decode([content])
            if not self._offset:
                content = os.pread(file, MOST_BYTES, 0)
                self._offset = len(content)
            if size - self._offset > MOST_BYTES:
                self._offset = size - MOST_BYTES
            new = os.pread(file, MOST_BYTES, self._offset)
            self._offset += len(new)
            content += new
        *lines, self._unfinished = _ENDS.split(content)
        self._unfinished = self._unfinished[-MOST_BYTES:]
        return _decode(lines)


def read_end(path: Path) -> str:
    """Return the end of what an attempt printed; empty if it cannot be read."""
    with contextlib.suppress(OSError), open_output(path) as file:
        size = os.fstat(file).st_size
        return os.pread(file, MOST_BYTES, max(0, size - MOST_BYTES)).decode(errors="replace")
    return ""


@contextlib.contextmanager
def open_output(path: Path) -> Iterator[int]:
    """Open a file of an attempt's folder for reading. Raises OSError if it is not a regular file: the folder
    belongs to the job's user too."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield file
    finally:
        os.close(file)


def _decode(lines: list[bytes]) -> list[str]:
    return [line.decode(errors="replace") for line in lines if line]
