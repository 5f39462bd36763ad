"""Workers that are killed, and servers that go away: nothing is stuck, run twice or forgotten."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import eventually
from live import NO_DEVICE_TWICE, Pool

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

ROUNDS = 3
DYING = Path(__file__).with_name("dying_worker.py")


@pytest.mark.parametrize(
    "points",
    [
        ("before_claim", "after_claim", "before_launch", "after_launch"),
        ("while_running", "at_exit", "before_record"),
    ],
    ids=["while starting", "afterwards"],
)
def test_a_worker_killed_at_any_point(
    new_stack: Callable[..., Stack], tmp_path: Path, points: tuple[str, ...]
) -> None:
    """Each worker recovers what the one before it left, takes a new job, and dies at its own point.
    A job notes every launch in a file: one line each means that nothing ran twice."""
    stack = new_stack("1x4:GTX 1080 Ti:11", worker=False)
    pool = Pool(stack)
    launches = tmp_path / "launches"
    deaths = points * ROUNDS
    runs = []
    for point in deaths:
        worker = _start(stack, point)
        run = pool.submit(f"echo $GPU_FLOWS_ATTEMPT >> {launches}; sleep 1", gpus=1)
        runs.append(run)
        assert worker.wait(timeout=120) == -9, f"it died at {point}"
    stack.start_worker()
    for run, point in zip(runs, deaths, strict=True):
        state = pool.until(run, "Completed", "Failed", "Crashed", "Cancelled")["state"]
        assert state["name"] == "Completed", f"killed {point}: {state}"
    launched = launches.read_text().split()
    assert sorted(line.rpartition(".")[0] for line in launched) == sorted(runs), "each ran exactly once"
    eventually(
        lambda: pool.sql("select count(*) from job_ends where outcome = 'completed'") == [(len(runs),)],
        "every end is recorded",
    )
    assert pool.sql("select count(*) from attempts") == [(len(runs),)]
    assert pool.sql("select count(*) from attempt_ends") == [(len(runs),)]
    assert not any(pool.holders().values())
    assert pool.sql(NO_DEVICE_TWICE) == [(0,)], "no device was held twice"


def _start(stack: Stack, point: str) -> subprocess.Popen[bytes]:
    log = (stack.home / "worker.log").open("ab")
    return subprocess.Popen(
        [sys.executable, str(DYING), stack.pool, point], env=stack.environment(), stdout=log, stderr=log
    )


def test_a_process_that_died_with_its_worker_is_noticed(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    pool = Pool(stack)
    run = pool.submit("sleep 600", gpus=4)
    pool.until(run, "Running")
    eventually(lambda: len(pool.processes(run)) >= 2, "the command runs")
    stack.stop_worker()
    assert pool.processes(run), "a stopped worker leaves its jobs alone"
    assert stack.stop_jobs() == 1
    stack.start_worker()
    state = pool.until(run, "Crashed")["state"]
    assert "while no worker was watching" in state["message"]
    pool.until(pool.submit("true", gpus=4), "Completed")


def test_an_adopted_job_can_be_cancelled(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    pool = Pool(stack)
    run = pool.submit("sleep 600", gpus=4)
    pool.until(run, "Running")
    eventually(lambda: len(pool.processes(run)) >= 2, "the command runs")
    stack.stop_worker()
    stack.start_worker()
    assert pool.holders()["SIM-node-1-0"], "its devices are still held"
    pool.cancel(run)
    pool.until(run, "Cancelled")
    assert "Crashed" not in pool.states(run)
    eventually(lambda: not pool.processes(run), "its processes are gone")


def test_a_second_worker_stands_by_and_takes_over(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    pool = Pool(stack)
    beside = Stack(stack.home, pool=stack.pool, api_url=stack.api_url)
    with beside:
        beside.start_worker()
        assert b"standing by" in (stack.home / "worker.log").read_bytes()
        pool.until(pool.submit("true", gpus=4), "Completed")
        stack.stop_worker()
        pool.until(pool.submit("true", gpus=4), "Completed")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Stack]:
    """A server that may be stopped without anybody else noticing."""
    with Stack(tmp_path / "own") as stack:
        stack.start_server()
        stack.set_up("1x4:GTX 1080 Ti:11", blocks=stack.pool)
        stack.start_worker()
        yield stack


def test_a_server_restart_with_jobs_running(own_server: Stack) -> None:
    pool = Pool(own_server)
    running = pool.submit("sleep 40; echo survived", gpus=2)
    pool.until(running, "Running")
    eventually(lambda: len(pool.processes(running)) >= 2, "the command runs")
    before = min(pool.processes(running))
    ends_meanwhile = pool.submit("sleep 2", gpus=2)
    eventually(lambda: len(pool.processes(ends_meanwhile)) >= 2, "the second command runs")
    own_server.stop_server()
    eventually(lambda: len(pool.processes(ends_meanwhile)) < 2, "its command ends while nobody answers")
    own_server.start_server()
    assert before in pool.processes(running), "the job did not notice"
    pool.until(running, "Completed")
    pool.until(ends_meanwhile, "Completed")
    assert set(pool.states(running)) <= {"Scheduled", "AwaitingGPU", "Pending", "Running", "Completed"}
    assert pool.states(running).count("Running") == 1
    pool.until(pool.submit("true", gpus=4), "Completed")
