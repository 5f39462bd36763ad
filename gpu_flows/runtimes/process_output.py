"""Sends what bare commands print to the logs of their runs, as the Docker runtime does for containers.

A process prints into `output.log` in the folder of its attempt. The file is followed here, by a runtime that
stands in front of the process runtime. A flow logs to Prefect itself, so its file is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Attempt, End, Found, Intent, Launch, Runtime
from gpu_flows.runtimes.output import LogSink, OutputSender
from gpu_flows.runtimes.output_buffer import LONGEST_LINE, OutputBuffer
from gpu_flows.runtimes.output_tail import open_output
from gpu_flows.runtimes.supervisor import OUTPUT_FILE

READ_INTERVAL_S = 0.25
READ_SIZE = 1_000_000  # bytes at a time
MOST_BEHIND = 8_000_000  # bytes; of more unread output, only the last part is sent
DRAIN_S = 5.0


class ProcessOutput:
    """A `Runtime` that follows the output of another one's attempts."""

    def __init__(self, runtime: Runtime, attempt_store: AttemptStore, sink: LogSink) -> None:
        self._runtime, self._attempt_store = runtime, attempt_store
        self._sender = OutputSender(sink)
        self._files: dict[str, OutputFile] = {}  # by attempt
        self._task: asyncio.Task[None] | None = None

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool] = lambda: True) -> Attempt:
        attempt = await self._runtime.launch(launch, still_wanted)
        self._follow(launch, adopted=False)
        return attempt

    async def wait(self, attempt: Attempt) -> End:
        end = await self._runtime.wait(attempt)
        if file := self._files.get(attempt.launch.id):
            await asyncio.to_thread(file.read_to_end)
            await self._sender.drain(attempt.launch.id, DRAIN_S)
        return end

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        await self._runtime.stop(attempt, intent)

    async def find(self) -> list[Found]:
        found = await self._runtime.find()
        for each in found:
            if each.attempt is not None:
                self._follow(each.launch, adopted=True)
        return found

    def forget(self, launch: Launch) -> None:
        self._files.pop(launch.id, None)
        self._sender.remove(launch.id)
        self._runtime.forget(launch)

    def sample_activity(self) -> dict[str, float]:
        return self._runtime.sample_activity()

    def read_output(self, launch: Launch) -> list[str]:
        return self._runtime.read_output(launch)

    async def close(self) -> None:
        """Stop following. The next worker continues after the last line that arrived."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._sender.close()

    def _follow(self, launch: Launch, adopted: bool) -> None:
        if launch.handles_intents or launch.id in self._files:
            return
        path = self._attempt_store.folder(launch) / OUTPUT_FILE
        buffer = OutputBuffer(launch, path.parent, tail_only=False, adopted=adopted, all_lines=str(path))
        self._files[launch.id] = OutputFile(path, buffer)
        self._sender.add(launch.id, buffer)
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_reading())

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(READ_INTERVAL_S)
            if files := list(self._files.values()):
                await asyncio.to_thread(lambda files: [file.read() for file in files], files)


class OutputFile:
    """Reads a growing file into a buffer, line by line."""

    def __init__(self, path: Path, buffer: OutputBuffer) -> None:
        self._path, self._buffer = path, buffer
        self._offset = buffer.read_offset
        self._lock = threading.Lock()

    def read(self) -> bool:
        """Add the next complete lines to the buffer. Returns whether there were any."""
        with self._lock, contextlib.suppress(OSError):
            return self._add_lines(self._read_ahead(), at_end=False)
        return False

    def read_to_end(self) -> None:
        """Add all lines to the buffer, also the last one if it has no newline. The job has ended."""
        while self.read():
            pass
        with self._lock, contextlib.suppress(OSError):
            self._add_lines(self._read_ahead(), at_end=True)

    def _read_ahead(self) -> bytes:
        with open_output(self._path) as file:
            size = os.fstat(file).st_size
            self._offset = min(self._offset, size)  # the job may have truncated it
            behind = size - self._offset
            if behind > MOST_BEHIND:
                self._offset = size - READ_SIZE
                note = f"{behind - READ_SIZE:,} bytes came too fast and are not shown; {self._path} has them."
                self._buffer.add_note(note, time.time_ns() // 1000)
            return os.pread(file, READ_SIZE, self._offset)

    def _add_lines(self, content: bytes, at_end: bool) -> bool:
        before = self._offset
        for line in _split_lines(content, at_end):
            self._offset += len(line)
            text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
            self._buffer.add_read(time.time_ns(), text, self._offset)
        return self._offset > before


def _split_lines(content: bytes, at_end: bool) -> list[bytes]:
    """Split into lines, and cut those that are too long. What has no newline yet is left out unless this is
    the end."""
    lines = []
    while content:
        end = content.find(b"\n", 0, LONGEST_LINE)
        if end < 0 and len(content) < LONGEST_LINE:
            if not at_end:
                break
            end = len(content) - 1
        size = end + 1 if end >= 0 else LONGEST_LINE
        lines.append(content[:size])
        content = content[size:]
    return lines
