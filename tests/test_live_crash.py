"""Workers are killed and servers are restarted: no run is stuck, runs twice or is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import eventually, start_server
from forked import Forked
from live import DOUBLE_ALLOCATIONS, Pool, wait_for_file

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

ROUNDS = 5


@pytest.mark.long
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
    """Each worker recovers the jobs of the one before it, starts a new job, and is killed at its own point.
    Each job appends a line to a file when it is launched, so the file shows whether a job ran twice."""
    stack = new_stack("1x4:GTX 1080 Ti:11", worker=False)
    pool = Pool(stack)
    launches = tmp_path / "launches"
    crashes = points * ROUNDS
    runs = []
    for point in crashes:
        arguments = [stack.pool, point]
        worker = Forked("crashing_worker", arguments, stack.environment(), stack.home / "worker.log")
        run = pool.submit(f"echo $GPU_FLOWS_ATTEMPT >> {launches}; sleep 1", gpus=1)
        runs.append(run)
        assert worker.wait(timeout=120) == -9, f"the worker was killed at {point}"
    stack.start_worker()
    for run, point in zip(runs, crashes, strict=True):
        state = pool.until(run, "Completed", "Failed", "Crashed", "Cancelled")["state"]
        assert state["name"] == "Completed", f"killed {point}: {state}"
    launched = launches.read_text().split()
    assert sorted(line.rpartition(".")[0] for line in launched) == sorted(runs), "each job ran exactly once"
    pool.until_recorded("select count(*) from job_ends where outcome = 'completed'", (len(runs),))
    assert pool.sql("select count(*) from attempts") == [(len(runs),)]
    assert pool.sql("select count(*) from attempt_ends") == [(len(runs),)]
    eventually(lambda: not any(pool.holders().values()), "the status shows no holder")
    assert pool.sql(DOUBLE_ALLOCATIONS) == [(0,)], "no device was allocated twice"


def start(pool: Pool, command: str, gpus: int) -> str:
    """Submit a job, and wait until its command runs."""
    run = pool.submit(command, gpus=gpus)
    pool.until(run, "Running")
    eventually(lambda: len(pool.processes(run)) >= 2, "the command runs")
    return run


def test_a_process_that_ended_without_a_worker_is_reported_as_crashed(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack()
    pool = Pool(stack)
    run = start(pool, "sleep 600", gpus=4)
    stack.stop_worker()
    assert pool.processes(run), "jobs continue without a worker"
    assert stack.stop_jobs() == 1
    stack.start_worker()
    state = pool.until(run, "Crashed")["state"]
    assert "ended by signal 9" in state["message"]
    pool.until(pool.submit("true", gpus=4), "Completed")


def test_an_adopted_job_can_be_cancelled(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    pool = Pool(stack)
    run = start(pool, "sleep 600", gpus=4)
    stack.stop_worker()
    stack.start_worker()
    eventually(lambda: pool.holders().get("SIM-node-1-0"), "its devices are still held")
    pool.cancel(run)
    pool.until(run, "Cancelled")
    assert "Crashed" not in pool.states(run)
    eventually(lambda: not pool.processes(run), "its processes have ended")


def test_a_second_worker_stands_by_and_takes_over(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    pool = Pool(stack)
    second = Stack(stack.home, pool=stack.pool, api_url=stack.api_url)
    with second:
        second.start_worker()
        assert b"standing by" in second.worker_log.read_bytes()
        pool.until(pool.submit("true", gpus=4), "Completed")
        stack.stop_worker()
        pool.until(pool.submit("true", gpus=4), "Completed")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Stack]:
    """A server of its own, which a test may stop."""
    with Stack(tmp_path / "own") as stack:
        start_server(stack)
        stack.set_up("1x4:GTX 1080 Ti:11", blocks=stack.pool)
        stack.start_worker()
        yield stack


def test_a_server_restart_with_jobs_running(own_server: Stack, tmp_path: Path) -> None:
    pool = Pool(own_server)
    running = start(pool, wait_for_file(tmp_path / "later"), gpus=2)
    before = min(pool.processes(running))
    ends_meanwhile = pool.submit(wait_for_file(tmp_path / "meanwhile"), gpus=2)
    eventually(lambda: len(pool.processes(ends_meanwhile)) >= 2, "the second command runs")
    own_server.stop_server()
    (tmp_path / "meanwhile").touch()
    eventually(
        lambda: len(pool.processes(ends_meanwhile)) < 2, "its command ends while the server is stopped"
    )
    own_server.start_server()
    assert before in pool.processes(running), "the job was not restarted"
    (tmp_path / "later").touch()
    pool.until(running, "Completed")
    pool.until(ends_meanwhile, "Completed")
    assert set(pool.states(running)) <= {"Scheduled", "AwaitingGPU", "Pending", "Running", "Completed"}
    assert pool.states(running).count("Running") == 1
    pool.until(pool.submit("true", gpus=4), "Completed")
