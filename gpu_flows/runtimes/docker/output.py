"""What containers print, on its way into the logs of their runs: in order, once, and soon.

Docker keeps every line with its time. A `Feed` holds the lines of one container that are still to be
sent; the `Pump` sends those of all containers together, a few times a second, and notes in the
attempt's folder how far it came. Whoever cannot know whether what was sent last has arrived, because the
sending failed or the worker was killed before it was noted, first asks how many lines arrived after the
noted one, and leaves out as many.
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
AT_ONCE_CHARACTERS = 2_000_000
MOST_PENDING = 20_000  # lines of one container
LONGEST_LINE = 64_000
TAIL = 50  # lines of a flow that are kept in case it ends without a word
LATE_S = 2  # a line that is older than one before it is older by less
POSITION = "output.position"
SECOND = 1_000_000_000


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


class Place(NamedTuple):
    """How far one has come in a container's output: so many lines since a second, and the latest time of any.
    Docker can be asked for what came since a second. Times alone would not do: lines can have the same one,
    and stdout and stderr overtake each other."""

    since: int = 0  # seconds since the epoch
    lines: int = 0
    latest_ns: int = 0


class _Counter:
    """Finds the place of each line as they are read, from a second on."""

    def __init__(self, since: int) -> None:
        self._since, self._latest_ns = since, 0
        self._lines: dict[int, int] = {}  # by second

    def count(self, at_ns: int) -> Place:
        second = at_ns // SECOND
        self._latest_ns = max(self._latest_ns, at_ns)
        if second - LATE_S > self._since:
            self._since = second - LATE_S
            self._lines = {each: lines for each, lines in self._lines.items() if each >= self._since}
        if second >= self._since:  # or it will not be read again
            self._lines[second] = self._lines.get(second, 0) + 1
        return Place(self._since, sum(self._lines.values()), self._latest_ns)


class _Pending(NamedTuple):
    line: Line
    place: Place | None  # of one of the container's lines


class Feed:
    """One container's lines. `quiet` for a job that logs by itself: only the last ones are kept. `adopted`
    when an earlier worker may have sent some."""

    def __init__(self, launch: Launch, folder: Path, quiet: bool, adopted: bool = False) -> None:
        self.job_id, self.quiet, self.is_unsure = launch.job.id, quiet, adopted
        self._folder = folder
        self._lock = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._in_flight: list[_Pending] = []
        self._tail: deque[tuple[int, str, Place]] = deque(maxlen=TAIL)
        self._dropped = 0
        self._seen, self.noted_us = _read_position(folder)
        if not self.noted_us and launch.attempt > 1:  # what arrived before is of another attempt
            self.noted_us = int(1e6 * launch.planned)
        self._last_us = self.noted_us
        self._skip = 0  # lines that have arrived though they were not noted
        self._counter = _Counter(0)
        self._repeats = 0

    # -- from the container -------------------------------------------------------------------

    def begin(self) -> int:
        """The output is read from this second on. What was seen since then comes once more."""
        with self._lock:
            self._counter, self._repeats = _Counter(self._seen.since), self._seen.lines
            return self._seen.since

    def put(self, at_ns: int, text: str) -> None:
        """A line of the container's. Called in the follower's thread."""
        with self._lock:
            place = self._counter.count(at_ns)
            if self._repeats and at_ns <= self._seen.latest_ns:
                self._repeats -= 1
                return
            self._repeats = 0  # if it is not over, Docker has thrown away what was to be repeated
            self._seen = place
            if self.quiet:
                self._tail.append((at_ns, text, place))
            else:
                self._append(at_ns, text, place)

    def say(self, text: str, at_us: int) -> None:
        """A word of ours, among the container's lines."""
        with self._lock:
            self._last_us = max(self._last_us, at_us - 1)
            self._append(0, text, None)

    def reveal(self) -> None:
        """The job ended badly: show what it printed last."""
        with self._lock:
            self.quiet = False
            while self._tail:
                self._append(*self._tail.popleft())

    def _append(self, at_ns: int, text: str, place: Place | None) -> None:
        # Lines of one burst can have the same microsecond, and are shown in the order of their times.
        self._last_us = max(self._last_us + 1, at_ns // 1000)
        if self._skip and place:
            self._skip -= 1
            return
        line = Line(self.job_id, self._last_us, text[:LONGEST_LINE], ours=place is None)
        self._pending.append(_Pending(line, place))
        if len(self._pending) > MOST_PENDING:
            for _ in range(MOST_PENDING // 2):
                self._pending.popleft()
            self._dropped += MOST_PENDING // 2

    # -- to the sink --------------------------------------------------------------------------

    def next(self, most: int, characters: int) -> list[Line]:
        """The next lines to be sent: the same ones until they are noted."""
        with self._lock:
            if self._dropped and self._pending:
                note = f"{self._dropped:,} lines came too fast and are not shown; `docker logs` has them."
                first_us = self._pending[0].line.at_us - 1
                self._pending.appendleft(_Pending(Line(self.job_id, first_us, note, ours=True), None))
                self._dropped = 0
            while self._pending and len(self._in_flight) < most and characters > 0:
                self._in_flight.append(self._pending.popleft())
                characters -= len(self._in_flight[-1].line.text)
            return [each.line for each in self._in_flight]

    def note(self) -> None:
        """Those in flight have arrived."""
        with self._lock:
            own = [each for each in self._in_flight if each.place]
            self._in_flight = []
        if own and (place := own[-1].place):
            self.noted_us = own[-1].line.at_us
            with contextlib.suppress(OSError):
                scratch = self._folder / f"{POSITION}.new"
                scratch.write_text(f"{place.since} {place.lines} {place.latest_ns} {self.noted_us}")
                scratch.replace(self._folder / POSITION)

    def doubt(self) -> None:
        """Those in flight may have arrived or not."""
        self.is_unsure = True

    def leave_out(self, arrived: int) -> None:
        """So many lines after the last noted one have arrived."""
        with self._lock:
            waiting = [*self._in_flight, *self._pending]
            self._in_flight, self._pending = [], deque()
            for each in waiting:
                if each.place and arrived:
                    arrived -= 1
                else:
                    self._pending.append(each)
            self._skip, self.is_unsure = arrived, False

    @property
    def is_empty(self) -> bool:
        return not self._pending and not self._in_flight


class Pump:
    """Sends the lines of all feeds."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._feeds: dict[str, Feed] = {}
        self._leaving: set[str] = set()  # go when all they have has arrived
        self._task: asyncio.Task[None] | None = None

    def add(self, attempt: str, feed: Feed) -> None:
        self._feeds[attempt] = feed
        self._leaving.discard(attempt)
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_sending())

    async def drain(self, attempt: str, patience_s: float) -> None:
        """Wait until all that the container printed has arrived, but for no longer than this."""
        feed, loop = self._feeds.get(attempt), asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while feed and not feed.is_empty and loop.time() < deadline:
            await asyncio.sleep(EVERY_S / 5)

    def remove(self, attempt: str) -> None:
        """There is no more to come; what is still here is sent."""
        self._leaving.add(attempt)

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
        for attempt in [
            each for each in self._leaving if each not in self._feeds or self._feeds[each].is_empty
        ]:
            self._leaving.discard(attempt)
            self._feeds.pop(attempt, None)
        busy = [feed for feed in self._feeds.values() if not feed.is_empty]
        for feed in [feed for feed in busy if feed.is_unsure]:
            feed.leave_out(await self._sink.count_after(feed.job_id, feed.noted_us))
        share = max(1, len(busy))
        batches = [feed.next(max(1, AT_ONCE // share), AT_ONCE_CHARACTERS // share) for feed in busy]
        lines = [line for batch in batches for line in batch]
        if lines:
            try:
                await self._sink.send(lines)
            except BaseException:
                for feed in busy:
                    feed.doubt()
                raise
        for feed in busy:
            feed.note()
        return len(lines) >= AT_ONCE


def _read_position(folder: Path) -> tuple[Place, int]:
    try:
        since, lines, latest_ns, us = map(int, (folder / POSITION).read_text().split())
    except (OSError, ValueError):
        return Place(), 0
    return Place(since, lines, latest_ns), us
