"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line.run import NOBODY
from command_line.server import FakeServer, fake_server


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home and settings of the test's own, and no server."""
    monkeypatch.setenv("GPU_FLOWS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_API_URL", NOBODY)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake(own_home: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with fake_server() as server:
        monkeypatch.setenv("PREFECT_API_URL", server.url)
        yield server
