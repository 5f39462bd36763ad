"""Follows one container from its start to its end, in a thread of its own.

It reads what the container prints. That stream ends when the container does, or when the connection
breaks; so at its end the container is looked at, and followed on if it still runs.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from docker import APIClient
from docker.errors import APIError, NotFound

from gpu_flows.docker_host import Host, HostAway
from gpu_flows.runtimes.base import End, Launch
from gpu_flows.runtimes.docker.container import name_of
from gpu_flows.runtimes.docker.launching import has_started
from gpu_flows.runtimes.docker.output import Feed

AGAIN_S = 0.5
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z?")


class Follower:
    """`on_end` is called in its thread, once, unless it is closed before."""

    def __init__(self, host: Host, launch: Launch, feed: Feed, on_end: Callable[[End], None]) -> None:
        self._host, self._launch, self._feed, self._on_end = host, launch, feed, on_end
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=f"follow-{launch.id}", daemon=True).start()

    def close(self) -> None:
        """Let go of it. What it is reading it may read to the end, in vain."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._host.ask(partial(self._read, True))
                end = self._look()
                if end is not None:  # a last line without an end may be missing from the stream
                    self._host.ask(partial(self._read, False))
            except (HostAway, APIError):
                end = None
            except Exception as error:  # whatever it is: it must not leave a job without an end
                end = None
                self._feed.say(f"Its output cannot be read: {error}", time.time_ns() // 1000)
            if end is not None:
                if not self._closed.is_set():
                    self._on_end(end)
                return
            self._closed.wait(AGAIN_S)

    def _read(self, follow: bool, api: APIClient) -> None:
        since = self._feed.begin() or None
        try:
            name = name_of(self._launch)
            stream = api.logs(name, stream=True, follow=follow, timestamps=True, since=since)
            for message in stream:
                if self._closed.is_set():
                    return
                self._put(message)
        except NotFound:
            pass  # `_look` says so

    def _put(self, message: bytes) -> None:
        """One line, with its time in front. Of a progress bar that overwrites itself, what is seen last."""
        stamp, _, text = message.decode(errors="replace").partition(" ")
        if at := nanoseconds(stamp):
            self._feed.put(at, text.rstrip("\r\n").rpartition("\r")[2])

    def _look(self) -> End | None:
        """How it ended, if it has. One that was to be started and was not is started now."""
        try:
            found = self._host.ask(lambda api: api.inspect_container(name_of(self._launch)))
            if not has_started(found):
                self._host.ask(lambda api: api.start(name_of(self._launch)))
                return None
        except NotFound:
            return End(detail="Its container was removed by somebody.")
        return end_of(found)


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
