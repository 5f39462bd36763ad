"""What a pool keeps of a job between its attempts, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_flows.checkpoints import contract
from gpu_flows.dispatch.job_store import KEEP_S, JobStore
from gpu_flows.dispatch.preemption import Preemption
from gpu_flows.schedulers.model import NO_PROGRESS, Progress

PROGRESS = Progress(2, 30.0, 60.0, 25.0, 99.0, 1)
PREEMPTION = Preemption(5.0, "preempted", "priority", ("urgent",), "Preempted.")


def test_the_next_worker_reads_what_the_last_one_stored(tmp_path: Path) -> None:
    first = JobStore(tmp_path)
    first.save_progress("a", PROGRESS)
    first.save_preemption("a", 3, PREEMPTION)
    (tmp_path / "jobs" / "incomplete.json").write_text("{")
    second = JobStore(tmp_path)
    assert second.load_progress("a") == PROGRESS
    assert second.load_preemption("a", 3) == PREEMPTION
    assert second.load_preemption("a", 4) is None, "this is another attempt"
    second.save_progress("a", PROGRESS)
    assert JobStore(tmp_path).load_preemption("a", 3) is None, "the preemption is complete"
    assert second.load_progress("incomplete") is second.load_progress("unknown") is NO_PROGRESS


def test_a_worker_that_takes_over_reads_what_was_stored_since_it_started(tmp_path: Path) -> None:
    standby, leader = JobStore(tmp_path), JobStore(tmp_path)
    leader.save_preemption("a", 3, PREEMPTION)
    standby.load()
    assert standby.load_preemption("a", 3) == PREEMPTION


def test_all_attempts_of_a_job_have_the_same_directory(tmp_path: Path) -> None:
    job_store = JobStore(tmp_path)
    directory = job_store.make_checkpoint_directory("a")
    assert directory == tmp_path / "checkpoints" / "a" == job_store.make_checkpoint_directory("a")
    assert directory.stat().st_mode & 0o777 == 0o700
    shared = tmp_path / "shared"
    with pytest.raises(FileNotFoundError):
        job_store.make_checkpoint_directory("a", str(shared))
    shared.mkdir()
    assert job_store.make_checkpoint_directory("a", str(shared)) == shared / "a"


def test_only_checkpoints_of_jobs_that_ended_long_ago_are_removed(tmp_path: Path) -> None:
    now = 1e9
    job_store = JobStore(tmp_path, lambda: now)
    empty, kept, again, unfinished = (
        job_store.make_checkpoint_directory(name) for name in ("empty", "kept", "again", "unfinished")
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    external = job_store.make_checkpoint_directory("external", str(shared))
    for directory in (kept, again, unfinished, external):
        (directory / "weights").touch()
    for name in ("empty", "kept", "again", "external"):
        job_store.finish(name)
    assert not empty.exists()
    assert kept.exists(), "the run may be started again by hand"
    job_store.make_checkpoint_directory("again")  # the run is started again
    job_store.retire_old()
    assert kept.exists()
    now += KEEP_S + 1
    job_store.retire_old()
    assert not kept.exists(), "it is out of use"
    job_store.remove_retired()
    assert not list((tmp_path / "removed").iterdir())
    assert again.exists()
    assert unfinished.exists()
    assert external.exists(), "directories outside the pool's folder are never removed"
    assert not list((tmp_path / "jobs").iterdir())


def test_a_directory_that_was_replaced_by_a_link_is_not_used(tmp_path: Path) -> None:
    """A job that can write to the root could redirect the worker to any directory."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    job_store = JobStore(tmp_path / "pool")
    assert job_store.make_checkpoint_directory("a", str(root)) == root / "a"
    (root / "a").rmdir()
    (root / "a").symlink_to(elsewhere)
    with pytest.raises(OSError, match="it is a link"):
        job_store.make_checkpoint_directory("a", str(root))


@pytest.mark.parametrize(
    "fields",
    [
        '"time": 1.7e18',
        '"time": 1, "bytes": Infinity',
        '"time": 1, "step": NaN',
        '"time": -1',
        '"time": "now"',
    ],
)
def test_invalid_numbers_in_a_journal_are_ignored(tmp_path: Path, fields: str) -> None:
    contract.write_entry(tmp_path, contract.Entry("saved", 1, 5.0, 7))
    with (tmp_path / contract.JOURNAL).open("a") as journal:
        journal.write(f'{{"event": "saved", "attempt": 1, {fields}}}\n')
    assert [entry.step for entry in contract.read_journal(tmp_path)] == [7]
