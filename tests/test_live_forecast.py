"""Forecasts of a real pool: in its status, on its runs and in the command line; a dry run that is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line.user import User
from conftest import eventually
from live import wait_for_file

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

QUALITY = """
    select quantity, jobs >= 1, mean_abs_error_s < 700 from eta_quality where horizon = 'first'
    order by quantity
"""


@pytest.fixture
def user(new_stack: Callable[..., Stack], tmp_path: Path) -> User:
    return User(new_stack("1x2:GTX 1080 Ti:11"), tmp_path)


@pytest.mark.long
def test_when_jobs_start_is_foreseen_and_recorded(user: User, tmp_path: Path) -> None:
    blocker_may_end, small_may_end = tmp_path / "blocker", tmp_path / "small"
    blocker = user.submit(
        *("--name", "blocker", "--expected", "10m", "--shell", "--", wait_for_file(blocker_may_end))
    )
    user.pool.until(blocker, "Running")
    small = ("--name", "small", "--expected", "5m", "--shell", "--", wait_for_file(small_may_end))
    check_dry_run(user, small)
    wide = user.submit("--name", "wide", "--gpus", "2", "--expected", "1m", "--", "true")

    entry = eventually(lambda: find_foreseen(user, "wide"), "the wide job has a forecast")
    waits_s = entry["eta"]["start_p50"] - user.pool.status().at
    assert 400 < waits_s < 700, "the blocker needs ten minutes"
    assert entry["eta"]["start_p50"] < entry["eta"]["start_p90"] < entry["eta"]["end_p90"]
    eventually(lambda: "It starts about" in str(user.pool.run(wide)["state"]["message"]), "the run says it")

    (queued,) = user.run("queue", "--json").json["waiting"]
    assert (queued["name"], queued["class"], queued["eta"].keys()) == (
        "wide",
        "capacity",
        entry["eta"].keys(),
    )
    explained = user.run("why", "wide", "--json").json
    assert [each["name"] for each in explained["waits_for"]] == ["blocker", "small"]
    shown = user.run("why", "wide").out
    assert "waits for" in shown
    assert "blocker" in shown

    small_may_end.touch()
    fewer = "on 1 GPU instead of 2"
    eventually(lambda: fewer in find_labels(user, "wide"), "half of the devices are free")
    refused = user.run("submit", "--dry-run", "--gpus", "3", "--", "true")
    assert refused.code == 1
    assert "never: it would be refused" in refused.out

    blocker_may_end.touch()
    user.pool.until(wide, "Completed")
    user.pool.until_recorded(QUALITY, ("end", True, True), ("start", True, True))
    assert "started" in user.run("why", "wide").out


def check_dry_run(user: User, words: tuple[str, ...]) -> None:
    """What a dry run foretells of the devices happens when the same job is submitted."""
    runs = user.pool.post("/flow_runs/count", {})
    foreseen = user.run("submit", "--dry-run", "--json", *words).json
    assert user.pool.post("/flow_runs/count", {}) == runs
    assert foreseen["starts_now"]
    run_id = user.submit(*words)
    user.pool.until(run_id, "Running")
    (entry,) = [job for job in user.pool.status().running if job["id"] == run_id]
    assert entry["devices"] == foreseen["devices"]


def find_foreseen(user: User, name: str) -> dict[str, Any] | None:
    found = [job for job in user.pool.status().waiting if job["name"] == name and job["eta"]]
    return found[0] if found else None


def find_labels(user: User, name: str) -> list[str]:
    return [each["label"] for each in user.run("why", name, "--json").json.get("alternatives", [])]
