"""The simulator repeats the recorded history of a live pool, with the same engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import pytest
from conftest import eventually
from live import Pool

from gpu_flows.analytics.recorded_trace import load
from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import simulate

pytestmark = pytest.mark.slow

JOBS = 30
CLUSTER = "2x2:GTX 1080 Ti:11"


@pytest.mark.long
def test_thirty_recorded_jobs_are_simulated(new_stack: Callable[..., Stack]) -> None:
    """Jobs start in the same order, and no earlier than in the simulation. How much later they end is
    measured by benchmarks/live_simulated.py."""
    stack = new_stack(CLUSTER, worker=False)
    pool = Pool(stack)
    for number in range(JOBS):
        pool.command(f"sleep {0.5 + number % 4}", gpus=1 + number % 2)
    stack.start_worker()
    done = "select count(*) from job_ends where outcome = 'completed'"
    eventually(lambda: pool.sql(done)[0][0] == JOBS, "all jobs have run", 240)

    live = pool.sql(
        "select job_id, epoch(first_started), epoch(ended) from job_history order by 2, submitted"
    )
    began = live[0][1]  # all jobs were submitted before the worker started
    recorded = load(stack.home / "warehouse.duckdb").arrivals
    arrivals = [
        replace(arrival, job=replace(arrival.job, submitted=0.0, queue_priority=n))
        for n, arrival in enumerate(recorded)
    ]
    simulation = simulate(arrivals, declare(CLUSTER), make_policy("fifo"))

    in_order = [job.arrival.job.id for job in sorted(simulation.jobs, key=lambda job: job.started or 0.0)]
    by_live_start = [job_id for job_id, _, _ in live]
    # Jobs of one plan are launched concurrently, so their order may differ slightly.
    assert all(abs(by_live_start.index(job_id) - place) <= 3 for place, job_id in enumerate(in_order))
    ends = [job.ended or 0.0 for job in simulation.jobs]
    # A live pool also takes time to launch jobs, and more of it on a busy machine.
    assert max(ended for _, _, ended in live) - began >= 0.95 * max(ends)
    assert fmean(ended - began for _, _, ended in live) >= 0.95 * fmean(ends)
