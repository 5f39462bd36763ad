"""Sends what containers print to the logs of their runs: every line once, in order, and soon.

Docker keeps every line with its time. An `OutputBuffer` holds the lines of one container that are still to
be sent. The `OutputSender` sends the lines of all containers together, a few times a second, and writes the
position of the last confirmed line into the attempt's folder.

If sending fails, or a worker is killed before it writes the position, it is unknown which lines arrived.
The sender then asks the sink how many lines arrived after the confirmed position, and skips that many.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple, Protocol

from gpu_flows.common.files import write_atomically
from gpu_flows.runtimes.base import Launch

SEND_INTERVAL_S = 0.25
MOST_LINES = 500  # in one request
MOST_CHARACTERS = 2_000_000  # in one request
MOST_PENDING = 20_000  # lines of one container
LONGEST_LINE = 64_000
TAIL = 50  # lines kept of a flow that logs to Prefect itself, in case it fails before it can
OUT_OF_ORDER_S = 2  # a line's time is never earlier than that of a line before it by more than this
POSITION_FILE = "output.position"
SECOND = 1_000_000_000


class LogLine(NamedTuple):
    """One line of a run's log."""

    job_id: str
    at_us: int  # microseconds since the epoch
    text: str
    from_worker: bool = False  # a message of the worker about the job, not printed by the job


class LogSink(Protocol):
    """Where lines are sent to."""

    async def send(self, lines: list[LogLine]) -> None:
        """Send the lines. Raises an exception if not all of them are known to have arrived."""
        ...

    async def count_after(self, job_id: str, at_us: int) -> int:
        """Return how many lines that the job printed after this time have arrived."""
        ...


class Position(NamedTuple):
    """A position in a container's output: a number of lines since a second, and the latest time among them.

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
    """The lines of one container that are still to be sent.

    With `tail_only`, for a job that logs to Prefect itself, only the last lines are kept and none is sent
    until `release_tail`. With `adopted`, an earlier worker may have sent some of the lines.
    """

    def __init__(self, launch: Launch, folder: Path, tail_only: bool, adopted: bool = False) -> None:
        self.job_id, self.tail_only, self.is_unconfirmed = launch.job.id, tail_only, adopted
        self._folder = folder
        self._lock = threading.Lock()
        self._pending: deque[_PendingLine] = deque()
        self._in_flight: list[_PendingLine] = []
        self._tail: deque[tuple[int, str, Position]] = deque(maxlen=TAIL)
        self._dropped = 0
        self._read_to, self.confirmed_us = _load_position(folder)
        if not self.confirmed_us and launch.attempt > 1:  # lines that arrived before are of another attempt
            self.confirmed_us = int(1e6 * launch.planned)
        self._last_us = self.confirmed_us
        self._skip = 0  # lines still to be read that have arrived already
        self._counter = _PositionCounter(0)
        self._repeated = 0  # lines that this reading repeats

    # -- from the container -------------------------------------------------------------------

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
            if self.tail_only:
                self._tail.append((at_ns, text, position))
            else:
                self._append(at_ns, text, position)

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

    def next_batch(self, most: int, characters: int) -> list[LogLine]:
        """Return the next lines to send: the same ones until they are confirmed."""
        with self._lock:
            if self._dropped and self._pending:
                note = f"{self._dropped:,} lines came too fast and are not shown; `docker logs` has them."
                first_us = self._pending[0].line.at_us - 1
                line = LogLine(self.job_id, first_us, note, from_worker=True)
                self._pending.appendleft(_PendingLine(line, None))
                self._dropped = 0
            while self._pending and len(self._in_flight) < most and characters > 0:
                self._in_flight.append(self._pending.popleft())
                characters -= len(self._in_flight[-1].line.text)
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


class OutputSender:
    """Sends the lines of all buffers to the sink."""

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink
        self._buffers: dict[str, OutputBuffer] = {}  # by attempt
        self._finished: set[str] = set()  # attempts whose buffers are removed when they are empty
        self._task: asyncio.Task[None] | None = None

    def add(self, attempt: str, buffer: OutputBuffer) -> None:
        self._buffers[attempt] = buffer
        self._finished.discard(attempt)
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_sending())

    async def drain(self, attempt: str, timeout_s: float) -> None:
        """Wait until all lines of the attempt have arrived, or the timeout has passed."""
        buffer, loop = self._buffers.get(attempt), asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while buffer and not buffer.is_empty and loop.time() < deadline:
            await asyncio.sleep(SEND_INTERVAL_S / 5)

    def remove(self, attempt: str) -> None:
        """Remove the attempt's buffer once its remaining lines have been sent."""
        self._finished.add(attempt)

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_sending(self) -> None:
        pause = SEND_INTERVAL_S
        while True:
            await asyncio.sleep(pause)
            try:
                is_full = await self._send_batch()
                pause = 0.0 if is_full else SEND_INTERVAL_S
            except Exception:  # the server does not answer: the lines stay in their buffers
                pause = min(2 * pause or SEND_INTERVAL_S, 5.0)

    async def _send_batch(self) -> bool:
        """Send one request. Returns whether it was full, so that there may be more to send."""
        self._remove_finished()
        busy = [buffer for buffer in self._buffers.values() if not buffer.is_empty]
        for buffer in [buffer for buffer in busy if buffer.is_unconfirmed]:
            buffer.skip_arrived(await self._sink.count_after(buffer.job_id, buffer.confirmed_us))
        share = max(1, len(busy))
        batches = [
            buffer.next_batch(max(1, MOST_LINES // share), MOST_CHARACTERS // share) for buffer in busy
        ]
        lines = [line for batch in batches for line in batch]
        if lines:
            try:
                await self._sink.send(lines)
            except BaseException:
                for buffer in busy:
                    buffer.mark_unconfirmed()
                raise
        for buffer in busy:
            buffer.confirm()
        return len(lines) >= MOST_LINES

    def _remove_finished(self) -> None:
        for attempt in list(self._finished):
            if attempt not in self._buffers or self._buffers[attempt].is_empty:
                self._finished.discard(attempt)
                self._buffers.pop(attempt, None)


def _load_position(folder: Path) -> tuple[Position, int]:
    try:
        since, lines, latest_ns, confirmed_us = map(int, (folder / POSITION_FILE).read_text().split())
    except (OSError, ValueError):
        return Position(), 0
    return Position(since, lines, latest_ns), confirmed_us
