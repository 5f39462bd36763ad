"""Commands in a second terminal find the server of `gpu-flows up` by the file that it leaves."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from command_line.run import expect_error, gpu_flows
from command_line.server import FakeServer

from gpu_flows.config.paths import home
from gpu_flows.config.running_server import RunningServer, announced, find_running_server

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

COMMAND = "gpu-flows up --pool lab"


@pytest.fixture
def empty_queue(fake: FakeServer) -> FakeServer:
    fake.answers["/work_pools/gpu"] = 200, {"base_job_template": {}}
    fake.answers["/flow_runs/filter"] = 200, []
    fake.answers["/work_pools/gpu/workers/filter"] = 200, []
    return fake


def make_server(api_url: str, pid: int = 0, folder: Path | None = None) -> RunningServer:
    return RunningServer.of(api_url, folder or home(), COMMAND, pid or os.getpid())


def test_command_finds_the_announced_server(empty_queue: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    with announced(make_server(empty_queue.url), home()):
        assert gpu_flows("queue").code == 0
    assert empty_queue.requests
    monkeypatch.delenv("PREFECT_API_URL")  # a command is a process of its own, so it leaves none behind
    assert "No Prefect server is configured" in expect_error(gpu_flows("queue"), code=1)


def test_command_finds_the_home_of_a_demo(
    empty_queue: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    with announced(make_server(empty_queue.url, folder=tmp_path / "demo"), home()):
        assert gpu_flows("queue").code == 0
    assert home() == tmp_path / "demo", "its status and its warehouse are there"


@pytest.mark.parametrize("where", ["environment", "profile"])
def test_configured_server_comes_first(
    where: str, empty_queue: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "profile":
        monkeypatch.delenv("PREFECT_API_URL")
        (tmp_path / "prefect").mkdir()
        (tmp_path / "prefect" / "profiles.toml").write_text(
            f'active = "lab"\n[profiles.lab]\nPREFECT_API_URL = "{empty_queue.url}"'
        )
    with announced(make_server("http://127.0.0.1:9/api"), home()):
        assert gpu_flows("queue").code == 0


def test_error_names_how_to_start_a_server_that_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    with subprocess.Popen(["sleep", "60"]) as process:
        server = make_server("http://127.0.0.1:4242/api", process.pid)
        process.kill()
    with announced(server, home()):
        error = expect_error(gpu_flows("why", "x"), code=1)
    assert "http://127.0.0.1:4242/api" in error
    assert "not running any more" in error
    assert f"Start it again: {COMMAND}" in error


def test_process_that_got_the_pid_later_is_not_the_server() -> None:
    server = make_server("http://127.0.0.1:4242/api")
    assert server.is_alive
    assert not RunningServer(server.api_url, server.home, COMMAND, server.pid, "1 boot", server.host).is_alive


def test_server_of_another_machine_is_not_found() -> None:
    server = make_server("http://127.0.0.1:4242/api")
    other = RunningServer(server.api_url, server.home, COMMAND, server.pid, server.started, "elsewhere")
    with announced(other, home()):
        assert find_running_server() is None


def test_living_server_keeps_its_place() -> None:
    first, second = make_server("http://127.0.0.1:1/api"), make_server("http://127.0.0.1:2/api")
    with announced(first, home()):
        with announced(second, home()) as found:
            assert not found
            assert find_running_server() == first
        assert find_running_server() == first
    assert find_running_server() is None
