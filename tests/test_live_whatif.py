"""A live pool's record is replayed: the jobs are started in the same order, and preempted as often."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest
from conftest import eventually
from live import Pool

from gpu_flows.analytics.whatif import Choice, Scenario, replay
from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

SLEEP = Path(__file__).parents[1] / "benchmarks" / "resumable_sleep.py"


def test_a_live_pool_is_replayed(new_stack: Callable[..., Stack]) -> None:
    """Some jobs take one GPU model, and an urgent job preempts others. How long everything takes depends on
    how busy the machine is, so it is not compared here (benchmarks/whatif.py does)."""
    stack = new_stack("1x2:V100:16+1x1:A100:40")
    pool = Pool(stack)
    pool.use_policy("priority", protection={"min_run_seconds": 1})

    def sleep(seconds: float, **variables: object) -> str:
        return pool.command(f"{quote(sys.executable)} -S {quote(str(SLEEP))} {seconds}", **variables)

    first = [sleep(4.3, gpu_models=["V100"]), sleep(6.7, gpu_models=["V100"])]
    for run in first:
        pool.until(run, "Running")
    others = [sleep(2.1, gpu_models=["A100"]), sleep(1.6), sleep(2.9)]
    urgent = sleep(1.2, gpus=2, priority_class="urgent")
    count = len(first) + len(others) + 1
    done = "select count(*) from job_history where outcome = 'completed'"
    eventually(lambda: pool.sql(done)[0][0] == count, "all jobs have completed")

    found = replay(stack.home / "warehouse.duckdb", policies=[Choice("fifo")], gpus=1)
    real, replayed = attempts(found.recorded), attempts(found.replayed)
    assert {real[run] for run in first} == {2}, "the urgent job preempted them"
    assert replayed == real
    assert found.replayed.figures.preemptions == found.recorded.figures.preemptions == 2
    for scenario in (found.recorded, found.replayed):
        starts = {job.job_id: job.started or 0 for job in scenario.jobs}
        assert max(starts[run] for run in first) < starts[urgent]
    assert [each.label for each in found.alternatives] == ["priority", "fifo"]
    assert all(not each.unfinished for each in found.alternatives)
    assert next(job for job in found.recorded.jobs if job.job_id == urgent).gpus == 2


def attempts(scenario: Scenario) -> dict[str, int]:
    return {job.job_id: job.attempts for job in scenario.jobs}
