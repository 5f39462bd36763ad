"""Follows one container from its start to its end, in a thread of its own.

The thread reads what the container prints. That stream ends when the container ends or when the connection
breaks, so after it the container is inspected, and followed further if it still runs.
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
from gpu_flows.runtimes.docker.container_spec import container_name
from gpu_flows.runtimes.docker.container_start import has_started
from gpu_flows.runtimes.docker.host import Host, HostUnreachable
from gpu_flows.runtimes.output_buffer import LONGEST_LINE, SECOND, OutputBuffer

RETRY_S = 0.5
STREAM_TIMEOUT_S = 30.0  # a stream that is silent for so long is opened again: its connection may be dead
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z?")


class ContainerFollower:
    """Calls `on_end`, in its own thread, once the container has ended, unless it is closed before.

    It starts a container that has not started, if it `may_start`: the request to start it was lost.
    """

    def __init__(
        self,
        host: Host,
        launch: Launch,
        buffer: OutputBuffer,
        on_end: Callable[[End], None],
        may_start: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host, self._name, self._buffer = host, container_name(launch), buffer
        self._on_end, self._may_start = on_end, may_start
        self._closed = threading.Event()
        self._has_reported_error = False
        threading.Thread(target=self._run, name=f"follow-{launch.id}", daemon=True).start()

    def close(self) -> None:
        """Stop following. The thread may end later, but has no effect any more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                end = self._follow()
            except Exception:  # retried whatever it is: without an end, the job would hold its devices
                end = None
            if end is not None:
                if not self._closed.is_set():
                    self._on_end(end)
                return
            self._closed.wait(RETRY_S)

    def _follow(self) -> End | None:
        """Read until the container ends or the connection breaks. Returns the end, if there is one."""
        unfinished = self._try_to_read(follow=True)
        end = self._find_end()
        if end is not None:
            # The stream may lack a last line without a newline. A new reading may in turn lack the start
            # of a line that began before the position from which it reads.
            self._try_to_read(follow=False, before=unfinished)
        return end

    def _try_to_read(self, follow: bool, before: LineAssembler | None = None) -> LineAssembler:
        """Read, and report an error only once: unreadable output must not hide the job's end."""
        try:
            return self._read(follow, before)
        except HostUnreachable:
            raise
        except Exception as error:
            if not self._has_reported_error:
                self._has_reported_error = True
                self._buffer.add_note(f"The job's output cannot be read: {error!r}", time.time_ns() // 1000)
            return LineAssembler()

    def _read(self, follow: bool, before: LineAssembler | None = None) -> LineAssembler:
        """Read what the container prints, and return the unfinished lines."""
        since, assembler = self._buffer.start_reading(), LineAssembler()

        def read(api: APIClient) -> None:
            for message in api.logs(
                self._name, stream=True, follow=follow, timestamps=True, since=since or None
            ):
                if self._closed.is_set():
                    return
                for line in assembler.add(message):
                    self._buffer.add_line(*line)

        with contextlib.suppress(NotFound):  # `_find_end` reports this
            self._host.call_blocking(read, STREAM_TIMEOUT_S)
        if not follow:
            old = [line for line in before.unfinished() if line[0] < since * SECOND] if before else []
            for line in [*old, *assembler.unfinished()]:
                self._buffer.add_line(*line)
        return assembler

    def _find_end(self) -> End | None:
        """Return how the container ended; None while it runs."""
        try:
            inspected = self._host.call_blocking(lambda api: api.inspect_container(self._name))
            if has_started(inspected):
                return parse_end(inspected)
            if not self._may_start():
                return End(detail="The container was created but never started.")
            return self._start()
        except NotFound:
            return End(detail="The container was removed by another program.")

    def _start(self) -> End | None:
        try:
            self._host.call_blocking(lambda api: api.start(self._name))
        except APIError as error:
            return End(detail=f"Docker on {self._host.name} cannot start it: {error.explanation}")
        return None


class LineAssembler:
    """Joins the pieces of long lines. Docker splits them and puts lines of the other stream in between, but
    gives all pieces of a line the same timestamp."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, bytes] = {}  # by timestamp

    def add(self, message: bytes) -> Iterator[tuple[int, str]]:
        """Yield the lines that this message completes, with their times in nanoseconds."""
        timestamp, _, text = message.partition(b" ")
        text = self._pieces.pop(timestamp, b"") + text
        while len(text) > LONGEST_LINE:
            yield from _decode_line(timestamp, text[:LONGEST_LINE])
            text = text[LONGEST_LINE:]
        if text.endswith(b"\n"):
            yield from _decode_line(timestamp, text)
        elif text:
            self._pieces[timestamp] = text

    def unfinished(self) -> list[tuple[int, str]]:
        """Return the lines that have no newline yet."""
        return [line for timestamp, text in self._pieces.items() for line in _decode_line(timestamp, text)]


def _decode_line(timestamp: bytes, text: bytes) -> Iterator[tuple[int, str]]:
    """Yield the time and text of a line. Of a progress bar that overwrites itself, only the last state."""
    if at := parse_time_ns(timestamp.decode(errors="replace")):
        yield at, text.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]


def parse_end(inspected: dict[str, Any]) -> End | None:
    """Return how an inspected container ended; None while it runs."""
    state = inspected["State"]
    if state.get("Running") or state.get("Restarting") or state.get("Paused"):
        return None
    oom_killed = bool(state.get("OOMKilled"))
    detail = (
        "It was killed because it ran out of memory; raise memory_gb."
        if oom_killed
        else str(state.get("Error") or "")
    )
    finished = parse_time_ns(str(state.get("FinishedAt") or ""))
    return End(
        int(state.get("ExitCode") or 0), finished / 1e9 if finished else None, oom_killed, detail=detail
    )


def parse_time_ns(timestamp: str) -> int:
    """Return Docker's timestamp as nanoseconds since the epoch; 0 if it is none."""
    match = _TIMESTAMP.match(timestamp)
    if not match or match[1].startswith("0001"):
        return 0
    seconds = int(datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000_000 + int((match[2] or "0").ljust(9, "0"))
