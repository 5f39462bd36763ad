"""Notes on disk that a policy is planning, so that the next worker knows if this one died of it.

The file holds one line: whether a plan is being made (`P` or `-`), how often a worker died during a plan of
this policy since it last stopped cleanly, and the policy's name. Only policies that plan in the worker's own
process are noted; any other dies in its own.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType

MOST_DEATHS = 2
_LENGTH = 256  # bytes


class PlanningMark:
    """The mark of one pool. It is opened once the worker leads, and silent if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._policy, self._deaths = "", 0

    def open(self) -> None:
        """Read what the last worker left, and count it as a death if it was planning."""
        if self._file is not None:
            return
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            line = os.pread(self._file, _LENGTH, 0).decode("utf-8", "replace").strip()
            if line[1:2].isdigit():
                self._policy, self._deaths = line[2:], min(9, int(line[1]) + (line[0] == "P"))
            self._write_line()

    def is_put_aside(self, policy: str) -> bool:
        """Whether workers died again and again while this policy planned."""
        return policy == self._policy and self._deaths >= MOST_DEATHS

    def watch(self, policy: str, again: bool = False) -> None:
        """Note the plans of this policy from now on; an empty name notes none. With `again`, its deaths are
        forgotten."""
        if policy != self._policy or again:
            self._policy, self._deaths = policy, 0
            self._write_line()

    def __enter__(self) -> None:
        if self._policy:
            self._write(b"P")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._policy:
            self._write(b"-")

    def close(self) -> None:
        """Forget everything: the worker stops cleanly."""
        if self._file is not None:
            self.watch("", again=True)
            os.close(self._file)
            self._file = None

    def _write_line(self) -> None:
        self._write(f"-{self._deaths}{self._policy}".encode()[: _LENGTH - 1].ljust(_LENGTH - 1) + b"\n")

    def _write(self, text: bytes) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, text, 0)
