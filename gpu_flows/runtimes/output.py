"""Sends what jobs print to the logs of their runs: every line once, in order, and soon.

The `OutputSender` sends the lines of all attempts together, a few times a second. Each attempt's lines are in
an `OutputBuffer`, which writes the position of the last confirmed line into the attempt's folder.

If sending fails, or a worker is killed before it writes the position, it is unknown which lines arrived.
The sender then asks the sink how many lines arrived after the confirmed position, and skips that many.
If the sink refuses a request, it is halved until the line is found that causes it, and a note replaces it
(`deliver`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from gpu_flows.runtimes.output_buffer import LogLine, OutputBuffer

log = logging.getLogger(__name__)

SEND_INTERVAL_S = 0.25
MOST_LINES = 500  # in one request
MOST_BYTES = 400_000  # in one request, and one line more: proxies refuse more than 1 MB


class LinesRefused(Exception):
    """The sink does not accept these lines, now or later; none of them has arrived."""


class LogSink(Protocol):
    """Where lines are sent to."""

    async def send(self, lines: list[LogLine]) -> None:
        """Send the lines. Raises LinesRefused, or another exception if not all of them are known to have
        arrived."""
        ...

    async def count_after(self, job_id: str, at_us: int) -> int:
        """Return how many lines that the job printed after this time have arrived."""
        ...


async def deliver(sink: LogSink, lines: list[LogLine], on_refusal: Callable[[LogLine, str], None]) -> None:
    """Send the lines. If the sink refuses them, send each half, down to the line that it refuses. A note is
    sent in place of that line, and `on_refusal` gets the line and the reason."""
    try:
        await sink.send(lines)
    except LinesRefused as refusal:
        if len(lines) > 1:
            await deliver(sink, lines[: len(lines) // 2], on_refusal)
            await deliver(sink, lines[len(lines) // 2 :], on_refusal)
        else:
            [line] = lines
            on_refusal(line, str(refusal))
            note = f"[gpu-flows: the server refused this line of {len(line.text):,} characters ({refusal})]"
            with contextlib.suppress(LinesRefused):  # it may accept nothing of a run that was deleted
                await sink.send([line._replace(text=note)])  # as a line of the job, so that it is counted


class OutputSender:
    """Sends the lines of all buffers to the sink."""

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink
        self._buffers: dict[str, OutputBuffer] = {}  # by attempt
        self._finished: set[str] = set()  # attempts whose buffers are removed when they are empty
        self._turn = 0
        self._is_urgent = False  # an attempt has ended: what is left of it is sent at once
        self._resting: asyncio.Future[None] | None = None
        self._refused: set[str] = set()  # jobs with a refused line
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
        self._hurry()
        while buffer and not buffer.is_empty and loop.time() < deadline:
            await asyncio.sleep(SEND_INTERVAL_S / 25)

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
            await self._rest(pause)
            try:
                has_more = await self._send_batch()
                pause = 0.0 if has_more else SEND_INTERVAL_S
            except Exception:  # the server does not answer: the lines stay in their buffers
                pause = min(2 * pause or SEND_INTERVAL_S, 5.0)

    async def _rest(self, seconds: float) -> None:
        """Pause for this time, or until `_hurry` is called. Unlike `wait_for`, it can always be cancelled."""
        loop = asyncio.get_running_loop()
        self._resting = loop.create_future()
        timer = loop.call_later(0.0 if self._is_urgent else seconds, _finish, self._resting)
        try:
            await self._resting
        finally:
            timer.cancel()
            self._is_urgent = False

    def _hurry(self) -> None:
        self._is_urgent = True
        if self._resting:
            _finish(self._resting)

    async def _send_batch(self) -> bool:
        """Send one request. Returns whether there is so much more to send that the next must not wait."""
        self._remove_finished()
        busy = [buffer for buffer in self._buffers.values() if not buffer.is_empty]
        for buffer in [buffer for buffer in busy if buffer.is_unconfirmed]:
            buffer.skip_arrived(await self._sink.count_after(buffer.job_id, buffer.confirmed_us))
        lines = self._collect(busy)
        if lines:
            try:
                await deliver(self._sink, lines, self._log_refusal)
            except BaseException:
                for buffer in busy:
                    buffer.mark_unconfirmed()
                raise
        for buffer in busy:
            buffer.confirm()
        is_large = 2 * len(lines) >= MOST_LINES or 2 * sum(line.size for line in lines) >= MOST_BYTES
        return is_large and any(not buffer.is_empty for buffer in busy)

    def _collect(self, busy: list[OutputBuffer]) -> list[LogLine]:
        """Return the lines of the next request: a share of each buffer, as long as there is room."""
        lines: list[LogLine] = []
        room, share = MOST_BYTES, max(1, MOST_LINES // max(1, len(busy)))
        self._turn += 1  # another buffer is the first in each request
        first = self._turn % max(1, len(busy))
        for buffer in busy[first:] + busy[:first]:
            batch = buffer.next_batch(share, min(room, MOST_BYTES // len(busy)))
            lines += batch
            room -= sum(line.size for line in batch)
        return lines

    def _log_refusal(self, line: LogLine, why: str) -> None:
        if line.job_id not in self._refused:
            self._refused.add(line.job_id)
            log.warning("The server refuses a line of run %s (%s); a note replaces it.", line.job_id, why)

    def _remove_finished(self) -> None:
        for attempt in list(self._finished):
            if attempt not in self._buffers or self._buffers[attempt].is_empty:
                self._finished.discard(attempt)
                if buffer := self._buffers.pop(attempt, None):
                    self._refused.discard(buffer.job_id)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
