"""What a command says, as much of it as one can read."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Emit = Callable[[str], None]

_LINES_AT_ONCE = 500
_LINES_PER_SECOND = 20
_LONGEST_LINE = 4_000
_SECONDS_BETWEEN_UPDATES = 5.0  # of a progress bar, or of how many lines are left out

# Colours and cursor movements, and what a database refuses to store (NUL) or a browser to show.
_UNPRINTABLE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")


class Output:
    """What a command says: all of it goes to stdout, as much as one can read goes to `emit`."""

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self.clock = clock
        self.lines = 0
        self.last_lines: deque[str] = deque(maxlen=10)
        self._unfinished = b""
        self._allowance = float(_LINES_AT_ONCE)
        self._allowance_at = self._remarked_at = clock()
        self._redrawn_at = -_SECONDS_BETWEEN_UPDATES
        self._left_out = 0
        self._last_left_out: deque[str] = deque(maxlen=10)

    def feed(self, chunk: bytes) -> None:
        with suppress(OSError):  # a full disk or a closed stdout is not the command's fault
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(1, rest) :]
        lines = (self._unfinished + chunk).splitlines(keepends=True)
        # One that ends in \r may still turn out to end in \r\n.
        unfinished = bool(lines) and not lines[-1].endswith(b"\n") and len(lines[-1]) <= _LONGEST_LINE
        self._unfinished = lines.pop() if unfinished else b""
        for line in lines:
            self._take(line)

    def emit(self, line: str) -> None:
        with suppress(Exception):  # nor is a reader who fails
            self._emit(line)

    def remark(self, text: str) -> None:
        self.emit(f"[{text}]")

    def close(self) -> None:
        """The end matters most: show the last lines even when those before were left out."""
        self._take(self._unfinished)
        self._left_out -= len(self._last_left_out)
        self._tell_what_is_left_out()
        for line in self._last_left_out:
            self.emit(line)

    def _take(self, raw: bytes) -> None:
        line = _UNPRINTABLE.sub("", raw.decode(errors="replace")).rstrip()
        if not line:
            return
        now = self.clock()
        if raw.endswith(b"\r"):  # a progress bar: a terminal would show only its latest state
            if now - self._redrawn_at < _SECONDS_BETWEEN_UPDATES:
                return
            self._redrawn_at = now
        if len(line) > _LONGEST_LINE:
            line = line[:_LONGEST_LINE] + " ..."
        self.lines += 1
        self.last_lines.append(line)
        earned = (now - self._allowance_at) * _LINES_PER_SECOND
        self._allowance = min(float(_LINES_AT_ONCE), self._allowance + earned)
        self._allowance_at = now
        if self._allowance < 1:
            self._left_out += 1
            self._last_left_out.append(line)
            return
        self._allowance -= 1
        if now - self._remarked_at >= _SECONDS_BETWEEN_UPDATES:
            self._remarked_at = now
            self._tell_what_is_left_out()
        self._last_left_out.clear()
        self.emit(line)

    def _tell_what_is_left_out(self) -> None:
        if self._left_out > 0:
            self.remark(f"{self._left_out:,} lines left out here; the job's log file has them all")
        self._left_out = 0
