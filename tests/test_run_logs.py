"""The output of containers in the logs of their runs."""

from __future__ import annotations

import asyncio
from unittest import mock
from uuid import uuid4

import httpx
import pytest
from fake_prefect import FakePrefect

from gpu_flows.prefect_api.conventions import WORKER_LOGGER
from gpu_flows.prefect_api.run_logs import OUTPUT, RunLogs
from gpu_flows.runtimes.output import LinesRefused
from gpu_flows.runtimes.output_buffer import LogLine

SECOND_US = 1_000_000


def test_lines_keep_their_time_and_name_their_source() -> None:
    prefect, job_id = FakePrefect(), str(uuid4())
    lines = [LogLine(job_id, SECOND_US, "a\0b"), LogLine(job_id, 2 * SECOND_US, "pulling", from_worker=True)]
    asyncio.run(RunLogs(prefect.client).send(lines))
    first, second = prefect.logs
    assert (first["name"], first["message"]) == (OUTPUT, "a\N{REPLACEMENT CHARACTER}b")
    assert first["timestamp"] == "1970-01-01T00:00:01+00:00"
    assert (second["name"], second["flow_run_id"]) == (WORKER_LOGGER, job_id)


def test_lines_after_a_time_are_counted_over_all_pages() -> None:
    prefect, job_id = FakePrefect(), str(uuid4())
    logs = RunLogs(prefect.client)
    lines = [LogLine(job_id, second * SECOND_US, "out") for second in range(450)]
    lines.append(LogLine(job_id, 449 * SECOND_US, "from the worker", from_worker=True))
    lines.append(LogLine(str(uuid4()), 449 * SECOND_US, "from another job"))
    asyncio.run(logs.send(lines))
    assert asyncio.run(logs.count_after(job_id, 9 * SECOND_US)) == 440


@pytest.mark.parametrize(
    ("status", "error"), [(413, LinesRefused), (422, LinesRefused), (503, httpx.HTTPError)]
)
def test_a_refusal_is_told_from_a_failure(status: int, error: type[Exception]) -> None:
    prefect = FakePrefect()
    response = httpx.Response(status, request=httpx.Request("POST", "http://server/api/logs/"))
    failure = httpx.HTTPStatusError("no", request=response.request, response=response)
    prefect.client.create_logs = mock.AsyncMock(side_effect=failure)  # type: ignore[method-assign]
    with pytest.raises(error):
        asyncio.run(RunLogs(prefect.client).send([LogLine(str(uuid4()), SECOND_US, "a")]))
