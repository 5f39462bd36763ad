"""What containers print, on its way into the logs of their runs: in order, once, and soon.

Docker keeps every line with its time. A `Feed` holds the lines of one container that are still to be
sent; the `Pump` sends those of all containers together, a few times a second, and notes in the
attempt's folder how far it came. A worker that was killed may have sent a little more than it noted:
the next one asks how many lines arrived after the noted one, and leaves out as many.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple, Protocol

from gpu_flows.runtimes.base import Launch

EVERY_S = 0.25
AT_ONCE = 500  # lines in one request
MOST_PENDING = 20_000  # lines of one container
LONGEST_LINE = 16_000
TAIL = 50  # lines of a flow that are kept in case it ends without a word
POSITION = "output.position"


class Line(NamedTuple):
    job_id: str
    at_us: int  # microseconds since the epoch
    text: str
    ours: bool = False  # a word of the worker's about the job, not the job's own


class Sink(Protocol):
    """Where lines go."""

    async def send(self, lines: list[Line]) -> None:
        """Raises an exception if they did not all arrive."""
        ...

    async def count_after(self, job_id: str, at_us: int) -> int:
        """How many of the job's own lines with a later time have arrived."""
        ...


class _Place(NamedTuple):
    """How far one has come in a container's output: a time, and how many lines of that very time."""

    ns: int = 0
    lines: int = 0

    def after(self, ns: int) -> _Place:
        return _Place(ns, self.lines + 1 if ns == self.ns else 1)


class Feed:
    """One container's lines. `quiet` for a job that logs by itself: only the last ones are kept."""

    def __init__(self, launch: Launch, folder: Path, quiet: bool) -> None:
        self.job_id, self._folder, self.quiet = launch.job.id, folder, quiet
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, Line]] = deque()  # with its nanosecond, by which Docker knows it
        self._tail: deque[tuple[int, str]] = deque(maxlen=TAIL)
        self._dropped = 0
        self._sent, self._last_us = _read_position(folder)
        self._seen = self._known = self._sent
        self._skip = 0  # lines that have arrived though they were not noted

    async def resume(self, sink: Sink) -> None:
        """Find out how far an earlier worker really came."""
        if not self.quiet:
            self._skip = await sink.count_after(self.job_id, self._last_us)

    def begin(self) -> int:
        """The output is read from here on, a second since the epoch: what was seen comes once more."""
        self._known = self._seen
        return self._seen.ns // 1_000_000_000

    def put(self, at_ns: int, text: str) -> None:
        """A line of the container's. Called in the follower's thread."""
        with self._lock:
            if at_ns <= self._known.ns:
                if at_ns < self._known.ns:
                    return
                if self._known.lines:
                    self._known = self._known._replace(lines=self._known.lines - 1)
                    return
            self._seen = self._seen.after(at_ns)
            if self._skip:
                self._skip -= 1
            elif self.quiet:
                self._tail.append((at_ns, text))
            else:
                self._append(at_ns, text, ours=False)

    def say(self, text: str, at_us: int) -> None:
        """A word of ours, among the container's lines."""
        with self._lock:
            self._last_us = max(self._last_us, at_us - 1)
            self._append(0, text, ours=True)

    def _append(self, at_ns: int, text: str, ours: bool) -> None:
        # Lines of one burst can have the same microsecond, and are shown in the order of their times.
        self._last_us = max(self._last_us + 1, at_ns // 1000)
        self._pending.append((at_ns, Line(self.job_id, self._last_us, text[:LONGEST_LINE], ours)))
        if len(self._pending) > MOST_PENDING:
            for _ in range(MOST_PENDING // 2):
                self._pending.popleft()
            self._dropped += MOST_PENDING // 2

    def reveal(self) -> None:
        """The job ended badly: show what it printed last."""
        with self._lock:
            self.quiet = False
            while self._tail:
                self._append(*self._tail.popleft(), ours=False)

    def next(self, most: int) -> list[tuple[int, Line]]:
        """The next lines to be sent. They stay until they are noted."""
        with self._lock:
            if self._dropped:
                note = f"{self._dropped:,} lines came too fast and are not shown; `docker logs` has them."
                first_us = self._pending[0][1].at_us - 1
                self._pending.appendleft((0, Line(self.job_id, first_us, note, ours=True)))
                self._dropped = 0
            return [self._pending[at] for at in range(min(most, len(self._pending)))]

    def note(self, sent: list[tuple[int, Line]]) -> None:
        """These have arrived."""
        with self._lock:
            for each in sent:
                if self._pending and self._pending[0] is each:
                    self._pending.popleft()
        own = [(ns, line.at_us) for ns, line in sent if not line.ours]
        for ns, _ in own:
            self._sent = self._sent.after(ns)
        if own:
            with contextlib.suppress(OSError):
                scratch = self._folder / f"{POSITION}.new"
                scratch.write_text(f"{self._sent.ns} {self._sent.lines} {own[-1][1]}")
                scratch.replace(self._folder / POSITION)

    @property
    def is_empty(self) -> bool:
        return not self._pending


class Pump:
    """Sends the lines of all feeds."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._feeds: dict[str, Feed] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, attempt: str, feed: Feed) -> None:
        self._feeds[attempt] = feed
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_sending())

    async def drain(self, attempt: str, patience_s: float) -> None:
        """Wait until all that the container printed has arrived, but for no longer than this."""
        feed, loop = self._feeds.get(attempt), asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while feed and not feed.is_empty and loop.time() < deadline:
            await asyncio.sleep(EVERY_S / 5)

    def remove(self, attempt: str) -> None:
        self._feeds.pop(attempt, None)

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_sending(self) -> None:
        pause = EVERY_S
        while True:
            await asyncio.sleep(pause)
            try:
                full = await self._send_some()
                pause = 0.0 if full else EVERY_S
            except Exception:  # whoever they go to is away: they stay, and are sent again
                pause = min(2 * pause or EVERY_S, 5.0)

    async def _send_some(self) -> bool:
        """Whether there was more than one request could take."""
        busy = [feed for feed in self._feeds.values() if not feed.is_empty]
        share = max(1, AT_ONCE // max(1, len(busy)))
        batches = [(feed, feed.next(share)) for feed in busy]
        lines = [line for _, batch in batches for _, line in batch]
        if lines:
            await self.sink.send(lines)
        for feed, batch in batches:
            feed.note(batch)
        return len(lines) >= AT_ONCE


def _read_position(folder: Path) -> tuple[_Place, int]:
    try:
        ns, lines, us = map(int, (folder / POSITION).read_text().split())
    except (OSError, ValueError):
        return _Place(), 0
    return _Place(ns, lines), us
