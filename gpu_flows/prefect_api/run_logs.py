"""Sends the output of jobs that do not log to Prefect themselves to the logs of their runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    LogFilter,
    LogFilterFlowRunId,
    LogFilterTimestamp,
)
from prefect.client.schemas.sorting import LogSort

from gpu_flows.prefect_api.conventions import PAGE, WORKER_LOGGER
from gpu_flows.runtimes.output import LinesRefused
from gpu_flows.runtimes.output_buffer import LogLine

OUTPUT = "gpu_flows.output"  # the logger name of a job's output
REFUSALS = (400, 413, 422)  # of the request's content or size: the same request would be refused again
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RunLogs:
    """Implements `gpu_flows.runtimes.output.LogSink`."""

    def __init__(self, client: PrefectClient) -> None:
        self._client = client

    async def send(self, lines: list[LogLine]) -> None:
        try:
            await self._client.create_logs([_build_log(line) for line in lines])
        except httpx.HTTPStatusError as error:
            if error.response.status_code in REFUSALS:
                raise LinesRefused(f"HTTP {error.response.status_code}") from error
            raise

    async def count_after(self, job_id: str, at_us: int) -> int:
        """Return how many lines of the job's output after this time the server has."""
        count, offset = 0, 0
        while True:
            page = await self._client.read_logs(
                LogFilter(
                    flow_run_id=LogFilterFlowRunId(any_=[UUID(job_id)]),
                    timestamp=LogFilterTimestamp.model_validate({"after_": _to_datetime(at_us + 1)}),
                ),
                limit=PAGE,
                offset=offset,
                sort=LogSort.TIMESTAMP_ASC,
            )
            count += sum(1 for log in page if log.name == OUTPUT)
            offset += len(page)
            if len(page) < PAGE:
                return count


def _build_log(line: LogLine) -> dict[str, Any]:
    return {
        "name": WORKER_LOGGER if line.from_worker else OUTPUT,
        "level": line.level,
        "message": line.text.replace("\0", "\N{REPLACEMENT CHARACTER}"),
        "timestamp": _to_datetime(line.at_us).isoformat(),
        "flow_run_id": line.job_id,
    }


def _to_datetime(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
