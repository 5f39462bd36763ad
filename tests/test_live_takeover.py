"""Two real workers of one pool: one has a bad network, is stopped for a while, or dies with its machine.

Each job writes down when it starts and ends, and on which devices. So what counts is what really ran.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import eventually
from live import Pool
from proxy import Proxy

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow
WORKER = Path(__file__).with_name("quick_lease_worker.py")


@dataclass
class Ran:
    """One attempt, as it wrote itself down."""

    attempt: str
    devices: set[str]
    began: float
    ended: float


class Journal:
    """Where the jobs write. A short line is appended in one step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def command(self, seconds: float) -> str:
        line = "echo $GPU_FLOWS_ATTEMPT $CUDA_VISIBLE_DEVICES $(date +%s.%N)"
        return f"sh -c '{line} begin >> {self.path}; sleep {seconds}; {line} end >> {self.path}'"

    def read(self) -> list[Ran]:
        began: dict[str, list[Ran]] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            attempt, devices, at, what = line.split()
            if what == "begin":
                began.setdefault(attempt, []).append(Ran(attempt, set(devices.split(",")), float(at), 1e12))
            else:
                began[attempt][-1].ended = float(at)
        return [ran for several in began.values() for ran in several]

    def check(self, runs: list[str]) -> None:
        """Each of these runs ran once, and no device had two of them at the same time."""
        ran = self.read()
        assert sorted(one.attempt.rpartition(".")[0] for one in ran) == sorted(runs), "each run ran once"
        for one in ran:
            for other in ran:
                if one is not other and one.devices & other.devices:
                    assert one.ended <= other.began or other.ended <= one.began, (one, other)


class Workers:
    """Two workers with homes of their own, as on two machines. The first one's network is the proxy."""

    def __init__(self, stack: Stack, proxy: Proxy, folder: Path) -> None:
        self.stacks = {
            "first": Stack(folder / "first", pool=stack.pool, api_url=proxy.api_url),
            "second": Stack(folder / "second", pool=stack.pool, api_url=stack.api_url),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, **env: str) -> None:
        stack = self.stacks[name]
        with (stack.home / "worker.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, str(WORKER), stack.pool, name],
                env={**stack.environment(), **env},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        return (self.stacks[name].home / "worker.log").read_text()

    def leads(self, name: str) -> bool:
        return '"leads": true' in self._status(name)

    def _status(self, name: str) -> str:
        path = self.stacks[name].home / "pools" / self.stacks[name].pool / "status.json"
        fresh = path.exists() and time.time() - path.stat().st_mtime < 5
        return path.read_text() if fresh else ""

    def signal(self, name: str, how: signal.Signals) -> None:
        self.processes[name].send_signal(how)

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for name, process in self.processes.items():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            self.stacks[name].stop_jobs()


@pytest.fixture
def workers(new_stack: Callable[..., Stack], tmp_path: Path) -> Iterator[tuple[Workers, Pool, Proxy]]:
    stack = new_stack(worker=False)
    with Proxy(stack.api_url) as proxy:
        workers = Workers(stack, proxy, tmp_path)
        workers.start("first")
        eventually(lambda: workers.leads("first"), "the first worker leads")
        workers.start("second")
        eventually(lambda: "standing by" in workers.log("second"), "the second worker stands by")
        try:
            yield workers, Pool(stack), proxy
        finally:
            workers.stop()


@pytest.mark.long
def test_slow_answers_then_a_stopped_leader(workers: tuple[Workers, Pool, Proxy], tmp_path: Path) -> None:
    both, pool, proxy = workers
    journal = Journal(tmp_path / "journal")
    runs = [pool.command(journal.command(0.5), gpus=1 + i % 2) for i in range(20)]
    eventually(lambda: len(journal.read()) >= 3, "some jobs run")

    proxy.delay_s = 16.0  # longer than a lease: the first worker cannot hold one
    runs += [pool.command(journal.command(0.5), gpus=1) for _ in range(10)]
    eventually(lambda: both.leads("second"), "the second worker leads")
    assert not both.leads("first")
    proxy.delay_s = 0.0
    for run in runs:
        pool.until(run, "Completed")
    journal.check(runs)

    runs += [pool.command(journal.command(1.0), gpus=1) for _ in range(12)]
    eventually(lambda: len(journal.read()) >= len(runs) - 10, "some jobs run")
    both.signal("second", signal.SIGSTOP)
    eventually(lambda: both.leads("first"), "the first worker leads")
    runs += [pool.command(journal.command(0.5), gpus=1) for _ in range(8)]
    time.sleep(5)
    both.signal("second", signal.SIGCONT)
    for run in runs:
        pool.until(run, "Completed")
    journal.check(runs)
    eventually(lambda: both.leads("first") and not both.leads("second"), "the first worker still leads")


@pytest.mark.long
def test_a_dead_machine(workers: tuple[Workers, Pool, Proxy], tmp_path: Path) -> None:
    """Worker and jobs of the first machine are gone. The second worker takes over, and gives up on them."""
    both, pool, _ = workers
    journal = Journal(tmp_path / "journal")
    lost = pool.command(journal.command(600), gpus=4)
    pool.until(lost, "Running")
    eventually(journal.read, "it runs")
    both.signal("first", signal.SIGKILL)
    waiting = pool.command(journal.command(0.1), gpus=4)
    eventually(lambda: both.leads("second"), "the second worker leads")
    assert pool.state(lost) == "Running", "its machine may live"
    both.stacks["first"].stop_jobs()
    ended = pool.until(lost, "Lost")
    assert ended["state"]["type"] == "CRASHED"
    assert "no sign of life" in ended["state"]["message"]
    pool.until(waiting, "Completed")
