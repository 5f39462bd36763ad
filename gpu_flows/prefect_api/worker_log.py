"""Lines that the worker writes into the logs of runs: why a run waits, where it starts, why it is stopped.

Writing returns immediately. The lines are sent in batches; when the server is away they wait, and when there
are too many the oldest are dropped, because no job may suffer from its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import PrefectException

from gpu_flows.prefect_api.run_logs import RunLogs
from gpu_flows.prefect_api.server_retry import is_temporary
from gpu_flows.runtimes.output import MOST_BYTES, deliver
from gpu_flows.runtimes.output_buffer import LogLine

log = logging.getLogger(__name__)

SEND_EVERY_S = 0.5
MOST_PER_REQUEST = 200
MOST_WAITING = 10_000
MOST_CHARACTERS = 4000  # of one line
CLOSE_TIMEOUT_S = 5.0


class WorkerLog:
    def __init__(self, client: PrefectClient) -> None:
        self._sink = RunLogs(client)
        self._lines: deque[LogLine] = deque(maxlen=MOST_WAITING)

    def write(self, job_id: str, text: str, level: int = logging.INFO) -> None:
        """Add a line to the log of the job's run."""
        at_us = time.time_ns() // 1000
        self._lines.append(LogLine(job_id, at_us, text[:MOST_CHARACTERS], from_worker=True, level=level))

    async def keep_sending(self) -> None:
        while True:
            await asyncio.sleep(SEND_EVERY_S)
            await self.send()

    async def send(self) -> None:
        """Send the lines that wait. If the server does not answer, they are sent next time."""
        while batch := self._take_batch():
            try:
                await deliver(self._sink, batch, _log_refusal)
            except (httpx.HTTPError, PrefectException) as error:
                if is_temporary(error):
                    self._put_back(batch)
                    return
                log.warning("%d lines for the logs of runs are lost: %s", len(batch), error)
            except asyncio.CancelledError:
                self._put_back(batch)
                raise

    async def close(self) -> None:
        """Send what still waits. A server that does not answer is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.send()

    def _take_batch(self) -> list[LogLine]:
        batch: list[LogLine] = []
        size = 0
        while self._lines and len(batch) < MOST_PER_REQUEST and size < MOST_BYTES:
            batch.append(self._lines.popleft())
            size += batch[-1].size
        return batch

    def _put_back(self, batch: list[LogLine]) -> None:
        room = MOST_WAITING - len(self._lines)
        self._lines.extendleft(reversed(batch[-room:] if room else []))


def _log_refusal(line: LogLine, why: str) -> None:
    log.warning("The server refuses a line for the log of run %s (%s): %s", line.job_id, why, line.text[:200])
