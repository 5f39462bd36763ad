"""The rl-retrain flow as a job of a pool: it learns from the pool's warehouse, and records how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live import Pool

from gpu_flows.analytics.facts import AttemptEnded, AttemptStarted, Fact, JobEnded, JobSubmitted
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.bootstrap.local_stack import Stack

pytest.importorskip("sb3_contrib", reason="needs gpu-flows[rl]")

pytestmark = pytest.mark.slow

T = 1_700_000_000.0


def past_jobs(pool: str) -> Iterator[Fact]:
    """Jobs of one or two devices that arrived faster than four devices could serve them."""
    for number in range(220):
        job_id, submitted, gpus = f"{pool}-{number}", T + 5.0 * number, 1 + number % 2
        started = submitted + 3.0 * number
        ended = started + (200.0 if number % 4 == 0 else 8.0)
        yield JobSubmitted(job_id, pool, job_id, "f", "", "ann", "[]", gpus, 0, 0, None, None, submitted)
        yield AttemptStarted(job_id, 1, "fifo", "process", "[]", started, started)
        yield AttemptEnded(job_id, 1, ended, "completed", 0)
        yield JobEnded(job_id, ended, "completed")


def test_rl_is_retrained_on_the_warehouse_of_its_pool(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack("1x4:GTX 1080 Ti:11", worker=False)
    recorder = Recorder(stack.home / "warehouse.duckdb", stack.home / "past")
    recorder.write(*past_jobs(stack.pool))
    recorder.close()
    stack.start_worker()
    pool = Pool(stack, flow="rl-retrain")
    pool.save_policy("rl")
    run_id = pool.submit(parameters={"steps": 1}, coordinator=True)
    ended = pool.until(run_id, "Completed", "Failed", "Crashed", patience_s=300)
    assert ended["state"]["name"] == "Completed", pool.logs(run_id)
    ((training, seed, steps),) = pool.sql("select training, seed, step from learning_points")
    assert (seed, steps) == (0, 4096)
    # One update may make the weights better or not. Only better ones are kept, and the pool uses them.
    kept = list((stack.home / "rl").glob("*.npz"))
    used = pool.block("gpu-scheduler")["data"]["options"]["rl"].get("weights", "")
    assert used == (str(kept[0]) if kept else "")
    assert not kept or "Learning curves" in Path(used).with_suffix(".html").read_text()
    assert ("\nreplaced: the mean" in pool.logs(run_id)) == bool(kept)
    assert not kept or kept[0].stem == training
