"""The lines of one attempt that are still to be sent, and how far they have arrived.

The lines come from Docker, which keeps each with its time, or from a file. After a restart, and if a stream
breaks, some of them are read again; the position of the last one tells which.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

from gpu_flows.common.files import write_atomically
from gpu_flows.runtimes.base import Launch

MOST_PENDING = 20_000  # lines of one attempt
LONGEST_LINE = 64_000
TAIL = 50  # lines kept of a flow that logs to Prefect itself, in case it fails before it can
LAST = 200  # lines kept of every container, to tell why it failed
MOST_NEW, LONGEST_NEW = 500, 2_000  # the newest lines that are kept, and characters of each
OUT_OF_ORDER_S = 2  # a line's time is never earlier than that of a line before it by more than this
POSITION_FILE = "output.position"
SECOND = 1_000_000_000


class LogLine(NamedTuple):
    """One line of a run's log."""

    job_id: str
    at_us: int  # microseconds since the epoch
    text: str
    from_worker: bool = False  # a message of the worker about the job, not printed by the job
    level: int = logging.INFO

    @property
    def size(self) -> int:
        """The most bytes that it takes in a request."""
        return len(json.dumps(self.text)) + 250


class Position(NamedTuple):
    """A position in a container's output: a number of lines since a second, and the latest time among them.
    In a file it is the number of bytes, in place of the lines.

    Docker can return the output since a given second. A time alone is not a position: lines can have the
    same time, and the times of stdout and stderr are not in order.
    """

    since: int = 0  # seconds since the epoch
    lines: int = 0
    latest_ns: int = 0


class _PositionCounter:
    """Computes the position of each line of an output that is read from a given second on."""

    def __init__(self, since: int) -> None:
        self._since, self._latest_ns = since, 0
        self._lines: dict[int, int] = {}  # by second

    def count(self, at_ns: int) -> Position:
        second = at_ns // SECOND
        self._latest_ns = max(self._latest_ns, at_ns)
        if second - OUT_OF_ORDER_S > self._since:
            self._since = second - OUT_OF_ORDER_S
            self._lines = {key: lines for key, lines in self._lines.items() if key >= self._since}
        if second >= self._since:  # an earlier line will not be read again
            self._lines[second] = self._lines.get(second, 0) + 1
        return Position(self._since, sum(self._lines.values()), self._latest_ns)


class _PendingLine(NamedTuple):
    line: LogLine
    position: Position | None  # None for a message of the worker


class OutputBuffer:
    """The lines of one attempt that are still to be sent.

    With `tail_only`, for a job that logs to Prefect itself, only the last lines are kept and none is sent
    until `release_tail`. With `adopted`, an earlier worker may have sent some of the lines. `all_lines` is
    where a user finds what was printed too fast to be sent.
    """

    def __init__(
        self,
        launch: Launch,
        folder: Path,
        tail_only: bool,
        adopted: bool = False,
        all_lines: str = "`docker logs`",
    ) -> None:
        self.job_id, self.tail_only, self.is_unconfirmed = launch.job.id, tail_only, adopted
        self._folder, self._all_lines = folder, all_lines
        self._lock = threading.Lock()
        self._pending: deque[_PendingLine] = deque()
        self._in_flight: list[_PendingLine] = []
        self._tail: deque[tuple[int, str, Position]] = deque(maxlen=TAIL)
        self._last: deque[str] = deque(maxlen=LAST)
        self._new: deque[str] = deque(maxlen=MOST_NEW)
        self._dropped = 0
        self._read_to, self.confirmed_us = _load_position(folder)
        if not self.confirmed_us and launch.attempt > 1:  # lines that arrived before are of another attempt
            self.confirmed_us = int(1e6 * launch.planned)
        self._last_us = self.confirmed_us
        self._skip = 0  # lines still to be read that have arrived already
        self._counter = _PositionCounter(0)
        self._repeated = 0  # lines that this reading repeats

    # -- from a file --------------------------------------------------------------------------

    @property
    def read_offset(self) -> int:
        """The number of bytes of the file that need not be read again."""
        return self._read_to.lines

    def add_read(self, at_ns: int, text: str, offset: int) -> None:
        """Add a line of a file that ends at this offset."""
        with self._lock:
            self._append(at_ns, text, Position(0, offset, 0))

    # -- from a container ---------------------------------------------------------------------

    def start_reading(self) -> int:
        """Return the second from which the output must be read. Lines that were read before are ignored."""
        with self._lock:
            self._counter, self._repeated = _PositionCounter(self._read_to.since), self._read_to.lines
            return self._read_to.since

    def add_line(self, at_ns: int, text: str) -> None:
        """Add a line that the container printed. Called in the follower's thread."""
        with self._lock:
            position = self._counter.count(at_ns)
            if self._repeated and at_ns <= self._read_to.latest_ns:
                self._repeated -= 1
                return
            self._repeated = 0  # Docker may have rotated away some of the lines that were to be repeated
            self._read_to = position
            self._last.append(text[:LONGEST_NEW])
            self._new.append(text[:LONGEST_NEW])
            if self.tail_only:
                self._tail.append((at_ns, text, position))
            else:
                self._append(at_ns, text, position)

    def last_lines(self) -> str:
        """Return the last lines that the container printed."""
        with self._lock:
            return "\n".join(self._last)

    def take_new(self) -> list[str]:
        """Return the newest lines since the last call, for those who follow the progress of the job."""
        with self._lock:
            new = list(self._new)
            self._new.clear()
        return new

    def add_note(self, text: str, at_us: int) -> None:
        """Add a message of the worker."""
        with self._lock:
            self._last_us = max(self._last_us, at_us - 1)
            self._append(0, text, None)

    def release_tail(self) -> None:
        """Send the last lines of a job that failed, though it logs to Prefect itself."""
        with self._lock:
            self.tail_only = False
            while self._tail:
                self._append(*self._tail.popleft())

    def _append(self, at_ns: int, text: str, position: Position | None) -> None:
        # Prefect sorts lines by time, and lines of one burst can have the same microsecond.
        self._last_us = max(self._last_us + 1, at_ns // 1000)
        if self._skip and position:
            self._skip -= 1
            return
        line = LogLine(self.job_id, self._last_us, text[:LONGEST_LINE], from_worker=position is None)
        self._pending.append(_PendingLine(line, position))
        if len(self._pending) > MOST_PENDING:
            for _ in range(MOST_PENDING // 2):
                self._pending.popleft()
            self._dropped += MOST_PENDING // 2

    # -- to the sink --------------------------------------------------------------------------

    def next_batch(self, most: int, size: int) -> list[LogLine]:
        """Return the next lines to send: the same ones until they are confirmed."""
        with self._lock:
            if self._dropped and self._pending:
                note = f"{self._dropped:,} lines came too fast and are not shown; {self._all_lines} has them."
                first_us = self._pending[0].line.at_us - 1
                line = LogLine(self.job_id, first_us, note, from_worker=True)
                self._pending.appendleft(_PendingLine(line, None))
                self._dropped = 0
            while self._pending and len(self._in_flight) < most and size > 0:
                self._in_flight.append(self._pending.popleft())
                size -= self._in_flight[-1].line.size
            return [pending.line for pending in self._in_flight]

    def confirm(self) -> None:
        """Record that the last batch has arrived."""
        with self._lock:
            printed = [pending for pending in self._in_flight if pending.position]
            self._in_flight = []
        if printed and (position := printed[-1].position):
            self.confirmed_us = printed[-1].line.at_us
            content = f"{position.since} {position.lines} {position.latest_ns} {self.confirmed_us}"
            with contextlib.suppress(OSError):
                write_atomically(self._folder / POSITION_FILE, content)

    def mark_unconfirmed(self) -> None:
        """Record that the last batch may or may not have arrived."""
        self.is_unconfirmed = True

    def skip_arrived(self, arrived: int) -> None:
        """Skip this number of lines after the last confirmed one: they have arrived."""
        with self._lock:
            waiting = [*self._in_flight, *self._pending]
            self._in_flight, self._pending = [], deque()
            for pending in waiting:
                if pending.position and arrived:
                    arrived -= 1
                else:
                    self._pending.append(pending)
            self._skip, self.is_unconfirmed = arrived, False

    @property
    def is_empty(self) -> bool:
        return not self._pending and not self._in_flight


def _load_position(folder: Path) -> tuple[Position, int]:
    try:
        since, lines, latest_ns, confirmed_us = map(int, (folder / POSITION_FILE).read_text().split())
    except (OSError, ValueError):
        return Position(), 0
    return Position(since, lines, latest_ns), confirmed_us
