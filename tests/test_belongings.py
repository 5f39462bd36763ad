"""What a pool keeps of a job between its attempts, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_flows.belongings import KEEP_S, SWEEP_EVERY_S, Belongings
from gpu_flows.leaving import Leave
from gpu_flows.schedulers.model import NO_PROGRESS, Progress

BEHIND = Progress(2, 30.0, 60.0, 25.0, 99.0, 1)
LEAVE = Leave(5.0, "preempted", "priority", ("boss",), "Made room.")


def test_the_next_worker_knows_what_the_last_one_knew(tmp_path: Path) -> None:
    first = Belongings(tmp_path)
    first.keep_progress("a", BEHIND)
    first.keep_leave("a", 3, LEAVE)
    (tmp_path / "belongings" / "torn.json").write_text("{")
    second = Belongings(tmp_path)
    assert second.progress("a") == BEHIND
    assert second.leave_of("a", 3) == LEAVE
    assert second.leave_of("a", 4) is None, "another attempt was not asked"
    second.keep_progress("a", BEHIND)
    assert Belongings(tmp_path).leave_of("a", 3) is None, "it has left"
    assert second.progress("torn") is second.progress("nobody") is NO_PROGRESS


def test_a_directory_is_the_jobs_own_and_stays_the_same(tmp_path: Path) -> None:
    belongings = Belongings(tmp_path)
    directory = belongings.checkpoints("a")
    assert directory == tmp_path / "checkpoints" / "a" == belongings.checkpoints("a")
    assert directory.stat().st_mode & 0o777 == 0o700
    shared = tmp_path / "shared"
    with pytest.raises(FileNotFoundError):
        belongings.checkpoints("a", str(shared))
    shared.mkdir()
    assert belongings.checkpoints("a", str(shared)) == shared / "a"


def test_what_ended_long_ago_is_removed_and_nothing_else(tmp_path: Path) -> None:
    now = 1e9
    belongings = Belongings(tmp_path, lambda: now)
    empty, kept, again, lives = (belongings.checkpoints(name) for name in ("empty", "kept", "again", "lives"))
    shared = tmp_path / "shared"
    shared.mkdir()
    theirs = belongings.checkpoints("theirs", str(shared))
    for directory in (kept, again, lives, theirs):
        (directory / "weights").touch()
    for name in ("empty", "kept", "again", "theirs"):
        belongings.ended(name)
    assert not empty.exists()
    assert kept.exists(), "it may be started again by hand"
    belongings.checkpoints("again")  # as it is here
    now += KEEP_S + SWEEP_EVERY_S
    belongings.ended("somebody")
    assert not kept.exists()
    assert again.exists()
    assert lives.exists()
    assert theirs.exists(), "what is not in the pool's folder is not ours to remove"
    assert not list((tmp_path / "belongings").iterdir())
