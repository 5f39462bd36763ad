"""What a pool records of itself, whatever becomes of its events."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest import mock
from uuid import uuid4

import pytest
from fake_pool import in_event_loop
from prefect.client.schemas.objects import WorkPool

from gpu_flows.analytics.facts import DeviceEvent
from gpu_flows.analytics.query_runner import run_query
from gpu_flows.blocks import Warehouse
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.worker.recording import PoolRecord


@in_event_loop
async def test_an_event_that_cannot_be_sent_loses_no_fact_and_disturbs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = WorkPool(id=uuid4(), name="lab", type="gpu")
    record = PoolRecord(pool, Engine((), Fifo()), lambda job_id: None, logging.getLogger("record"))
    await record.open(Warehouse(path=str(tmp_path / "w.duckdb")), tmp_path / "spool")
    with mock.patch.object(record._events, "add", side_effect=ValueError("too large")):
        record.add(DeviceEvent(1.0, "GPU-0", "n", "sick", "Xid 79"))
    record.flush()
    await record.close()
    assert "too large" in caplog.text
    database = record.find_database()
    assert database
    assert run_query(database, "select device_id from device_events", {}).rows == [("GPU-0",)]
