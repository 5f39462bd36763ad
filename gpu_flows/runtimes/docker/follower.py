"""Follows one container from its start to its end, in a thread of its own.

It reads what the container prints. That stream ends when the container does, or when the connection
breaks; so at its end the container is looked at, and followed on if it still runs.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from docker import APIClient
from docker.errors import APIError, NotFound

from gpu_flows.runtimes.base import End, Launch
from gpu_flows.runtimes.docker.container import name_of
from gpu_flows.runtimes.docker.host import Host, HostAway
from gpu_flows.runtimes.docker.launching import has_started
from gpu_flows.runtimes.docker.output import LONGEST_LINE, SECOND, Feed

AGAIN_S = 0.5
SILENT_S = 30.0  # after which a stream is asked for again: its connection may be dead
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z?")


class Follower:
    """`on_end` is called in its thread, once, unless it is closed before. A container that was to be started
    and was not, as the answer was lost, is started if it `may_start`."""

    def __init__(
        self,
        host: Host,
        launch: Launch,
        feed: Feed,
        on_end: Callable[[End], None],
        may_start: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host, self._name, self._feed = host, name_of(launch), feed
        self._on_end, self._may_start = on_end, may_start
        self._closed = threading.Event()
        self._has_complained = False
        threading.Thread(target=self._run, name=f"follow-{launch.id}", daemon=True).start()

    def close(self) -> None:
        """Let go of it. What it is reading it may read to the end, in vain."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                end = self._follow()
            except Exception:  # it is asked again, whatever it is
                end = None
            if end is not None:
                if not self._closed.is_set():
                    self._on_end(end)
                return
            self._closed.wait(AGAIN_S)

    def _follow(self) -> End | None:
        """Read until it ends or the connection breaks."""
        unfinished = self._read_if_possible(follow=True)
        end = self._look()
        if end is not None:
            # A last line without an end may be missing from the stream, and one that was begun long ago
            # from what is read now.
            self._read_if_possible(follow=False, before=unfinished)
        return end

    def _read_if_possible(self, follow: bool, before: Parts | None = None) -> Parts:
        """Output that cannot be read must not leave a job without an end."""
        try:
            return self._read(follow, before)
        except HostAway:
            raise
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                self._feed.say(f"Its output cannot be read: {error!r}", time.time_ns() // 1000)
            return Parts()

    def _read(self, follow: bool, before: Parts | None = None) -> Parts:
        """Read what it prints, and answer with the lines that are not finished."""
        since, parts = self._feed.begin(), Parts()

        def read(api: APIClient) -> None:
            for message in api.logs(
                self._name, stream=True, follow=follow, timestamps=True, since=since or None
            ):
                if self._closed.is_set():
                    return
                for line in parts.add(message):
                    self._feed.put(*line)

        with contextlib.suppress(NotFound):  # `_look` says so
            self._host.ask(read, SILENT_S)
        if not follow:
            old = [line for line in before.rest() if line[0] < since * SECOND] if before else []
            for line in [*old, *parts.rest()]:
                self._feed.put(*line)
        return parts

    def _look(self) -> End | None:
        """How it ended, if it has."""
        try:
            found = self._host.ask(lambda api: api.inspect_container(self._name))
            if has_started(found):
                return end_of(found)
            if not self._may_start():
                return End(detail="It was made, but never started.")
            return self._start()
        except NotFound:
            return End(detail="Its container was removed by somebody.")

    def _start(self) -> End | None:
        try:
            self._host.ask(lambda api: api.start(self._name))
        except APIError as error:
            return End(detail=f"Docker on {self._host.name} cannot start it: {error.explanation}")
        return None


class Parts:
    """Puts the pieces of long lines together again: Docker cuts them, and mixes in what the other stream
    printed meanwhile, but gives all the pieces of a line the same time."""

    def __init__(self) -> None:
        self._begun: dict[bytes, bytes] = {}  # by time

    def add(self, message: bytes) -> Iterator[tuple[int, str]]:
        """The lines that this message ends, with their times in nanoseconds."""
        stamp, _, text = message.partition(b" ")
        text = self._begun.pop(stamp, b"") + text
        while len(text) > LONGEST_LINE:
            yield from _line(stamp, text[:LONGEST_LINE])
            text = text[LONGEST_LINE:]
        if text.endswith(b"\n"):
            yield from _line(stamp, text)
        elif text:
            self._begun[stamp] = text

    def rest(self) -> list[tuple[int, str]]:
        """The lines that have not ended."""
        return [line for stamp, text in self._begun.items() for line in _line(stamp, text)]


def _line(stamp: bytes, text: bytes) -> Iterator[tuple[int, str]]:
    """Of a progress bar that overwrites itself, what is seen last."""
    if at := nanoseconds(stamp.decode(errors="replace")):
        yield at, text.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]


def end_of(inspected: dict[str, Any]) -> End | None:
    """How the container ended; None while it runs."""
    state = inspected["State"]
    if state.get("Running") or state.get("Restarting") or state.get("Paused"):
        return None
    code = int(state.get("ExitCode") or 0)
    oom = bool(state.get("OOMKilled"))
    detail = (
        "It was killed because it ran out of memory; raise memory_gb."
        if oom
        else str(state.get("Error") or "")
    )
    finished = nanoseconds(str(state.get("FinishedAt") or ""))
    return End(code, finished / 1e9 if finished else None, oom, detail=detail)


def nanoseconds(stamp: str) -> int:
    """Docker's time as nanoseconds since the epoch; 0 for what is none."""
    match = _TIME.match(stamp)
    if not match or match[1].startswith("0001"):
        return 0
    seconds = int(datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000_000 + int((match[2] or "0").ljust(9, "0"))
