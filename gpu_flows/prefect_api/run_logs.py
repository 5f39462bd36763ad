"""Sends the output of jobs that do not log to Prefect themselves to the logs of their runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    LogFilter,
    LogFilterFlowRunId,
    LogFilterTimestamp,
)
from prefect.client.schemas.sorting import LogSort

from gpu_flows.runtimes.docker.output import LogLine

OUTPUT, WORKER = "gpu_flows.output", "gpu_flows.worker"  # logger names: the job, the worker
INFO = 20
PAGE = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RunLogs:
    """Implements `gpu_flows.runtimes.docker.output.Sink`."""

    def __init__(self, client: PrefectClient) -> None:
        self._client = client

    async def send(self, lines: list[LogLine]) -> None:
        await self._client.create_logs([_build_log(line) for line in lines])

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
        "name": WORKER if line.from_worker else OUTPUT,
        "level": INFO,
        "message": line.text.replace("\0", "\N{REPLACEMENT CHARACTER}"),
        "timestamp": _to_datetime(line.at_us).isoformat(),
        "flow_run_id": line.job_id,
    }


def _to_datetime(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
