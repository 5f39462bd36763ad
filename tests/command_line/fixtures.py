"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line.pool_server import PoolServer
from command_line.run import NO_SERVER_URL
from command_line.server import FakeServer, serve
from command_line.simulation import write


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test its own home folder and settings, and no server."""
    monkeypatch.setenv("GPU_FLOWS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_API_URL", NO_SERVER_URL)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake(own_home: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with serve(FakeServer()) as server:
        monkeypatch.setenv("PREFECT_API_URL", server.url)
        yield server


@pytest.fixture
def pool_server(own_home: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolServer]:
    with serve(PoolServer()) as server:
        monkeypatch.setenv("PREFECT_API_URL", server.url)
        yield server


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four jobs on one node of two devices, where fifo and srtf differ."""
    return write(
        tmp_path / "jobs.csv",
        "job_id,submit_time,num_gpus,duration,user,utilization",
        "long,0,2,100,ann,50",
        "short,10,2,10,bob,100",
        "small,20,1,30,ann,100",
        "late,200,1,20,bob,80",
    )
