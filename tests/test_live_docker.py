"""Bare containers and flows in containers, through the real server, worker and engines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import eventually
from docker_hosts.daemon import Daemon
from live import Pool

from gpu_flows.stack import Stack

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow


def test_a_bare_container_from_the_form(new_stack: Callable[..., Stack], engine: Daemon) -> None:
    stack = new_stack("", hosts=[f"one={engine.url},gpus=4"])
    pool = Pool(stack, flow="container")
    line = "sh -c 'echo out; echo err >&2; echo $NVIDIA_VISIBLE_DEVICES; sleep 2; exit 0'"
    run = pool.submit(parameters={"container_image": "bare:test", "command": line, "required_gpus": 2})
    ended = pool.until(run, "Completed", "Failed", "Crashed", "Refused")
    assert ended["state"]["name"] == "Completed", ended["state"]
    assert [state for state in pool.states(run) if state != "AwaitingGPU"] == [
        "Scheduled",
        "Pending",
        "Running",
        "Completed",
    ]
    assert sorted(pool.logs(run).splitlines()) == ["SIM-one-0,SIM-one-1", "err", "out"]
    eventually(lambda: pool.sql("select count(*) from attempt_ends") == [(1,)], "its end is recorded")
    assert pool.sql("select runtime, exit_code, oom_killed, peak_memory_mb > 0 from attempt_history") == [
        ("docker", 0, False, True)
    ]
