"""The output of a command, limited to a rate that people can read."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Emit = Callable[[str], None]

_BURST_LINES = 500
_LINES_PER_SECOND = 20
_LONGEST_LINE = 4_000
_SECONDS_BETWEEN_UPDATES = 5.0  # of a progress bar, or of the number of omitted lines

# Colours, cursor movements, and characters that a database cannot store or a browser cannot show.
_UNPRINTABLE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")


class Output:
    """Writes all output of a command to stdout, and passes as many lines to `emit` as people can read."""

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self.clock = clock
        self.lines = 0
        self.last_lines: deque[str] = deque(maxlen=10)
        self._unfinished = b""
        self._allowance = float(_BURST_LINES)
        self._allowance_at = self._remarked_at = clock()
        self._redrawn_at = -_SECONDS_BETWEEN_UPDATES
        self._omitted = 0
        self._last_omitted: deque[str] = deque(maxlen=10)

    def feed(self, chunk: bytes) -> None:
        with suppress(OSError):  # a full disk or a closed stdout must not stop the command
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(1, rest) :]
        lines = (self._unfinished + chunk).splitlines(keepends=True)
        # The next chunk may begin with the \n of a line that ends in \r\n.
        unfinished = bool(lines) and not lines[-1].endswith(b"\n") and len(lines[-1]) <= _LONGEST_LINE
        self._unfinished = lines.pop() if unfinished else b""
        for line in lines:
            self._process(line)

    def emit(self, line: str) -> None:
        with suppress(Exception):  # neither must a reader that fails
            self._emit(line)

    def remark(self, text: str) -> None:
        self.emit(f"[{text}]")

    def close(self) -> None:
        """Pass on the last lines, even if lines before them were omitted."""
        self._process(self._unfinished)
        self._omitted -= len(self._last_omitted)
        self._report_omitted()
        for line in self._last_omitted:
            self.emit(line)

    def _process(self, raw: bytes) -> None:
        line = _UNPRINTABLE.sub("", raw.decode(errors="replace")).rstrip()
        if not line:
            return
        now = self.clock()
        if raw.endswith(b"\r"):  # a progress bar, of which a terminal shows only the latest state
            if now - self._redrawn_at < _SECONDS_BETWEEN_UPDATES:
                return
            self._redrawn_at = now
        if len(line) > _LONGEST_LINE:
            line = line[:_LONGEST_LINE] + " ..."
        self.lines += 1
        self.last_lines.append(line)
        earned = (now - self._allowance_at) * _LINES_PER_SECOND
        self._allowance = min(float(_BURST_LINES), self._allowance + earned)
        self._allowance_at = now
        if self._allowance < 1:
            self._omitted += 1
            self._last_omitted.append(line)
            return
        self._allowance -= 1
        if now - self._remarked_at >= _SECONDS_BETWEEN_UPDATES:
            self._remarked_at = now
            self._report_omitted()
        self._last_omitted.clear()
        self.emit(line)

    def _report_omitted(self) -> None:
        if self._omitted > 0:
            self.remark(f"{self._omitted:,} lines omitted here; the job's log file has them all")
        self._omitted = 0
