"""`gpu-flows up` beside other workers, and what becomes of its jobs when it is stopped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command_line.server import FakeServer
from command_line.worker import write_status

from gpu_flows.bootstrap.local_stack import STOPPED_WITH_STACK, Stack
from gpu_flows.cli import up

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "TAKEOVER_S", 0.05)
    monkeypatch.setattr(up, "LEASE_S", 0.5)


def find_who_serves(*answers: bool) -> str:
    """What `up` says if its worker answers like this, one time after the other, when asked if it serves."""
    remaining = list(answers)
    stack = SimpleNamespace(
        pool="gpu", serves=lambda: remaining.pop(0) if len(remaining) > 1 else remaining[0]
    )
    return up._wait_until_served(cast(Any, stack))


def test_worker_serves_the_pool() -> None:
    assert find_who_serves(True) == "Ready."


def test_another_worker_serves_the_pool() -> None:
    write_status(worker="elder")
    expected = "Ready. Worker 'elder' serves pool 'gpu'; the worker of this command stands by to take over."
    assert find_who_serves(False) == expected


def test_lease_of_a_dead_worker_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_who_serves(False, False, True) == "Ready."
    assert "Waiting for the lease" in capsys.readouterr().out


def test_worker_of_another_machine_serves_the_pool() -> None:
    assert find_who_serves(False).startswith("A worker on another machine serves pool 'gpu'")


def test_each_stack_of_a_home_has_a_log_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def log_at_once(self: Stack, command: list[str], log: str, env: object = None) -> object:
        with (self.home / log).open("a") as file:
            file.write("Serving pool 'gpu'")
        return SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr(Stack, "_start", log_at_once)
    first, second = Stack(tmp_path), Stack(tmp_path)
    first.start_worker()
    second.start_worker()
    assert (first.worker_log.name, second.worker_log.name) == ("worker.log", "worker-2.log")
    assert first.serves()
    first.close()
    third = Stack(tmp_path)
    third.start_worker()
    assert third.worker_log.name == "worker.log"


def test_runs_that_are_stopped_with_the_server_are_cancelled_with_a_reason(
    fake: FakeServer, tmp_path: Path
) -> None:
    fake.answers["/flow_runs/filter"] = 200, [{"id": "42"}]
    fake.answers["/flow_runs/42/set_state"] = 201, {}
    stack = Stack(tmp_path)
    stack.api_url = fake.url
    assert stack._mark_stopped_runs() == 1
    path, _, body = fake.requests[-1]
    assert path == "/flow_runs/42/set_state"
    assert (body["state"]["type"], body["state"]["message"]) == ("CANCELLED", STOPPED_WITH_STACK)
