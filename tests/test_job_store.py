"""What a pool keeps of a job between its attempts, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_flows.checkpoints import contract
from gpu_flows.dispatch.job_store import KEEP_S, SWEEP_EVERY_S, JobStore
from gpu_flows.dispatch.preemption import Preemption
from gpu_flows.schedulers.model import NO_PROGRESS, Progress

BEHIND = Progress(2, 30.0, 60.0, 25.0, 99.0, 1)
LEAVE = Preemption(5.0, "preempted", "priority", ("boss",), "Made room.")


def test_the_next_worker_knows_what_the_last_one_knew(tmp_path: Path) -> None:
    first = JobStore(tmp_path)
    first.keep_progress("a", BEHIND)
    first.save_preemption("a", 3, LEAVE)
    (tmp_path / "job_store" / "torn.json").write_text("{")
    second = JobStore(tmp_path)
    assert second.progress("a") == BEHIND
    assert second.preemption_of("a", 3) == LEAVE
    assert second.preemption_of("a", 4) is None, "another attempt was not asked"
    second.keep_progress("a", BEHIND)
    assert JobStore(tmp_path).preemption_of("a", 3) is None, "it has left"
    assert second.progress("torn") is second.progress("nobody") is NO_PROGRESS


def test_a_directory_is_the_jobs_own_and_stays_the_same(tmp_path: Path) -> None:
    job_store = JobStore(tmp_path)
    directory = job_store.checkpoints("a")
    assert directory == tmp_path / "checkpoints" / "a" == job_store.checkpoints("a")
    assert directory.stat().st_mode & 0o777 == 0o700
    shared = tmp_path / "shared"
    with pytest.raises(FileNotFoundError):
        job_store.checkpoints("a", str(shared))
    shared.mkdir()
    assert job_store.checkpoints("a", str(shared)) == shared / "a"


def test_what_ended_long_ago_is_removed_and_nothing_else(tmp_path: Path) -> None:
    now = 1e9
    job_store = JobStore(tmp_path, lambda: now)
    empty, kept, again, lives = (job_store.checkpoints(name) for name in ("empty", "kept", "again", "lives"))
    shared = tmp_path / "shared"
    shared.mkdir()
    theirs = job_store.checkpoints("theirs", str(shared))
    for directory in (kept, again, lives, theirs):
        (directory / "weights").touch()
    for name in ("empty", "kept", "again", "theirs"):
        job_store.ended(name)
    assert not empty.exists()
    assert kept.exists(), "it may be started again by hand"
    job_store.checkpoints("again")  # as it is here
    now += KEEP_S + SWEEP_EVERY_S
    job_store.ended("somebody")
    assert not kept.exists()
    assert again.exists()
    assert lives.exists()
    assert theirs.exists(), "what is not in the pool's folder is not ours to remove"
    assert not list((tmp_path / "job_store").iterdir())


def test_a_directory_that_has_become_a_link_is_not_used(tmp_path: Path) -> None:
    """Under a root that the job can write to, it could lead the worker anywhere."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    job_store = JobStore(tmp_path / "pool")
    assert job_store.checkpoints("a", str(root)) == root / "a"
    (root / "a").rmdir()
    (root / "a").symlink_to(elsewhere)
    with pytest.raises(OSError, match="it is a link"):
        job_store.checkpoints("a", str(root))


@pytest.mark.parametrize(
    "odd",
    [
        '"time": 1.7e18',
        '"time": 1, "bytes": Infinity',
        '"time": 1, "step": NaN',
        '"time": -1',
        '"time": "now"',
    ],
)
def test_a_journal_with_odd_numbers_is_not_believed(tmp_path: Path, odd: str) -> None:
    contract.write_entry(tmp_path, contract.Entry("saved", 1, 5.0, 7))
    with (tmp_path / contract.JOURNAL).open("a") as journal:
        journal.write(f'{{"event": "saved", "attempt": 1, {odd}}}\n')
    assert [entry.step for entry in contract.read_journal(tmp_path)] == [7]
