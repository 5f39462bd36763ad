"""`gpu-flows up` as a user has it: started in the background, with other terminals beside it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line.run import CommandResult, gpu_flows_process
from conftest import eventually

from gpu_flows.bootstrap.local_stack import free_port
from gpu_flows.schedulers.reasons import DRAINED

pytestmark = pytest.mark.slow

README = Path(__file__).parents[1] / "README.md"


class Terminals:
    """The terminals of a user whose settings name no server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._started = folder, free_port(), 0
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "GPU_"))}
        self.env = {**own, "GPU_FLOWS_HOME": str(folder / "home"), "PREFECT_HOME": str(folder / "prefect")}

    def run(self, *words: str) -> CommandResult:
        return gpu_flows_process(*words, env=self.env, cwd=self.folder)

    @contextmanager
    def up(self, *options: str) -> Iterator[Up]:
        """Start `gpu-flows up` as a shell does with &, and end it with SIGINT."""
        self._started += 1
        command = ["up", "--port", str(self.port), *options]
        up = Up(command, self.env, self.folder / f"up-{self._started}.log")
        try:
            eventually(lambda: up.is_ready() or up.process.poll() is not None, "it is up", patience_s=240)
            assert up.is_ready(), up.shown()
            yield up
        finally:
            up.end()


class Up:
    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self._log = log
        # The shell makes a command in the background ignore SIGINT.
        line = f"trap '' INT; exec {shlex.join([sys.executable, '-m', 'gpu_flows.cli', *command])}"
        with log.open("w") as output:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", line], env=env, stdout=output, stderr=output, start_new_session=True
            )

    def shown(self) -> str:
        return self._log.read_text()

    def is_ready(self) -> bool:
        return "Ctrl-C stops" in self.shown()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(90)


@pytest.fixture
def terminals(tmp_path: Path) -> Terminals:
    return Terminals(tmp_path)


@pytest.mark.long
def test_up_in_the_background_with_other_terminals(terminals: Terminals) -> None:
    with terminals.up("--cluster", "3x1") as up:
        assert "\nReady. The UI is at" in up.shown()
        assert terminals.run("policy", "show").code == 0, "it finds the server"
        _shorten_protection(terminals, seconds=3)
        _run_readme_example(terminals)
        with terminals.up() as second:
            assert "stands by to take over" in second.shown()
            assert "Ctrl-C stops the worker. Running jobs continue" in second.shown()
        assert "standing by" not in up.shown(), "each shows the log of its own worker"
        running = [job["id"] for job in terminals.run("queue", "--json").json["running"]]
        assert len(running) >= 2, "the jobs continue while one of the two workers is there"
        assert terminals.run("drain", "node-3").code == 0
    assert "Stopped, and with it" in up.shown()
    assert "No Prefect server is configured" in terminals.run("policy", "show").err
    with terminals.up("--cluster", "4x1"):
        devices = terminals.run("gpus", "--json").json["devices"]
        assert len(devices) == 4
        drained = [device["node"] for device in devices if device["detail"] == DRAINED]
        assert drained == ["node-3"], "a given cluster changes its nodes and nothing else"
        for run in running:
            found = terminals.run("why", run, "--json").json
            assert found["state"] == "Cancelled"
            assert "was stopped" in found["why"]
        ended = "select distinct outcome from job_ends join jobs using (job_id) where flow = 'train'"
        eventually(
            lambda: terminals.run("sql", ended, "--csv").out.split() == ["outcome", "cancelled"], "ends"
        )


def _run_readme_example(terminals: Terminals) -> None:
    """Run the README's example of preemption, with one device per job to spare this machine's processors."""
    [text] = re.findall(r"## Stop and resume jobs.*?```\n(.*?)```", README.read_text(), re.DOTALL)
    lines = [line.partition("  #")[0].strip().replace("--gpus 4", "--gpus 1") for line in text.splitlines()]
    set_policy, loop, urgent, queue, preemptions = lines
    assert queue == "gpu-flows queue --all --watch"
    submit = re.fullmatch(r"for job in 1 2 3; do gpu-flows (submit train .*); done", loop)
    assert submit, loop
    assert terminals.run(*shlex.split(set_policy)[1:]).code == 0
    for _ in range(3):
        done = terminals.run(*shlex.split(submit[1]), "--param", "steps_per_second=5")
        assert done.code == 0, done
    eventually(lambda: len(_list_running(terminals)) == 3, "the cluster is full")
    done = terminals.run(*shlex.split(urgent)[1:], "--wait")
    assert done.code == 0, done
    eventually(lambda: terminals.run(*shlex.split(preemptions)[1:], "--json").json, "a preemption in SQL")
    eventually(lambda: len(_list_running(terminals)) == 3, "the stopped job continues")


def _list_running(terminals: Terminals) -> list[Any]:
    return list(terminals.run("queue", "--json").json["running"])


def _shorten_protection(terminals: Terminals, seconds: float) -> None:
    """Protect jobs for seconds instead of a minute, as a user does in the UI."""
    word = json.loads((terminals.folder / "home" / "server.json").read_text())
    with httpx.Client(base_url=word["api_url"], timeout=60) as server:
        path = "/block_types/slug/gpu-scheduler/block_documents/name/default"
        block = server.get(path).json()
        data = {**block["data"], "protection": {"min_run_seconds": seconds}}
        body = {"data": data, "merge_existing_data": False}
        server.patch(f"/block_documents/{block['id']}", json=body).raise_for_status()
