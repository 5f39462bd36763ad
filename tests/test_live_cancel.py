"""Cancelling from the UI at every stage of a job: its devices are released and its processes end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import eventually
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

IGNORES_SIGNALS = "trap '' TERM INT USR1; (trap '' TERM; sleep 600) & sleep 600"


def wait_until_released(pool: Pool, run: str) -> None:
    eventually(lambda: not pool.processes(run), "every process of the run has ended")
    eventually(lambda: not any(pool.holders().values()), "its devices are free")


def test_a_waiting_run(new_stack: Callable[..., Stack]) -> None:
    pool = Pool(new_stack())
    blocker = pool.submit("sleep 600", gpus=4, grace_seconds=1)
    pool.until(blocker, "Running")
    waiting = pool.submit("true", gpus=4)
    pool.until(waiting, "AwaitingGPU")
    pool.cancel(waiting)
    pool.until(waiting, "Cancelled")
    eventually(lambda: not pool.status().waiting, "it is no longer in the queue")
    ends = eventually(lambda: pool.sql("select job_id, outcome from job_ends"), "its end is recorded")
    assert ends == [(waiting, "cancelled")]

    pool.cancel(blocker)
    pool.until(blocker, "Cancelled")
    assert "Crashed" not in pool.states(blocker), "the run itself reports that it was cancelled"
    wait_until_released(pool, blocker)
    assert pool.until(pool.submit("true", gpus=4), "Completed")


def test_a_run_that_is_being_launched(new_stack: Callable[..., Stack]) -> None:
    pool = Pool(new_stack())
    run = pool.submit("sleep 600", gpus=4, grace_seconds=1)
    pool.until(run, "Pending", "Running")  # mostly the first, which is short
    pool.cancel(run)
    pool.until(run, "Cancelled")
    wait_until_released(pool, run)
    assert "Completed" not in pool.states(run)


@pytest.mark.parametrize("way", ["flow", "command"])
def test_a_job_that_ignores_signals(new_stack: Callable[..., Stack], way: str) -> None:
    pool = Pool(new_stack())
    if way == "flow":
        run = pool.submit(IGNORES_SIGNALS, gpus=4, grace_seconds=1)
    else:
        run = pool.command(f'sh -c "{IGNORES_SIGNALS}"', gpus=4, grace_seconds=1)
    eventually(lambda: len(pool.processes(run)) >= 2, "its children run")
    pool.cancel(run)
    pool.until(run, "Cancelled")
    wait_until_released(pool, run)
