"""The status file: what the worker writes, the command line reads, unless it is old or damaged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from command_line.worker import write_status

from gpu_flows.config.paths import pool_folder
from gpu_flows.worker import status as status_file
from gpu_flows.worker.status import FRESH_S, read_status

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


def test_what_is_written_is_read() -> None:
    written = write_status("gpu", recorder_trouble="the warehouse is locked")
    assert read_status("gpu") == written
    assert read_status("another") is None


def test_the_status_of_a_worker_that_has_ended_is_not_shown() -> None:
    write_status("gpu", at=time.time() - FRESH_S - 1)
    assert read_status("gpu") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"pool": "gpu"}', '{"of a": "later version"}'])
def test_a_damaged_or_foreign_file_is_no_status(content: str) -> None:
    write_status("gpu")
    (pool_folder("gpu") / "status.json").write_text(content)
    assert read_status("gpu") is None


def test_on_a_full_disk_the_old_status_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_status("gpu")

    def fail(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(status_file, "write_atomically", fail)
    write_status("gpu", recorder_trouble="newer")
    assert read_status("gpu") == old


def test_pools_whose_names_are_no_file_names_have_a_status() -> None:
    written = write_status("../odd name")
    assert read_status("../odd name") == written
