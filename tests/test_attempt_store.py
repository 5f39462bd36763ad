"""What is kept of attempts, and how many attempts a job has had."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from conftest import eventually

from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch
from gpu_flows.schedulers.model import Job
from gpu_flows.worker.housekeeping import keep_tidy

WEEK_S = 7 * 24 * 3600.0


def make_launch(job_id: str, attempt: int = 1) -> Launch:
    return Launch(Job(job_id), attempt, "pool", "fifo", 0.0, (), ("true",))


def test_attempts_are_counted_whether_they_run_or_ended(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    standby = AttemptStore(tmp_path)
    for number in (1, 2):
        store.create(make_launch("a", number))
        store.mark_ended(make_launch("a", number))
    store.create(make_launch("b"))
    counts = {"a": 2, "b": 1, "c": 0}
    assert {job: store.last_attempt(job) for job in counts} == counts
    assert {job: AttemptStore(tmp_path).last_attempt(job) for job in counts} == counts
    standby.count_attempts()
    assert {job: standby.last_attempt(job) for job in counts} == counts, "it takes over"


def test_counting_does_not_list_the_folders_again(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    store.create(make_launch("a"))
    store.mark_ended(make_launch("a"))
    store.ended.rename(tmp_path / "elsewhere")
    assert store.last_attempt("a") == 1


def test_an_attempt_that_is_marked_as_ended_twice_is_no_longer_open(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    for _ in range(2):
        store.create(make_launch("a"))
        store.mark_ended(make_launch("a"))
        (store.ended / "a.1" / "output.log").touch()
    assert not list(store.open_attempts())


def test_old_attempts_and_checkpoints_are_removed_while_the_worker_runs(tmp_path: Path) -> None:
    now = time.time()
    store, job_store = AttemptStore(tmp_path), JobStore(tmp_path, lambda: now)
    for job_id in ("old", "new"):
        store.create(make_launch(job_id))
        store.mark_ended(make_launch(job_id))
        (job_store.make_checkpoint_directory(job_id) / "weights").touch()
    job_store.finish("old")
    now += WEEK_S + 1
    job_store.finish("new")
    os.utime(store.ended / "old.1", (time.time() - WEEK_S - 1,) * 2)

    async def tidy() -> None:
        task = asyncio.create_task(keep_tidy(job_store, store, lambda: True))
        await asyncio.to_thread(eventually, lambda: not (store.ended / "old.1").exists(), "it is removed")
        task.cancel()

    asyncio.run(tidy())
    assert (store.ended / "new.1").exists()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["new"]
    assert not list((tmp_path / "removed").iterdir())
