"""The commands about jobs on a real server with a real worker, as one user's afternoon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line.user import User
from conftest import eventually

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow


@pytest.fixture
def user(new_stack: Callable[..., Stack], tmp_path: Path) -> User:
    return User(new_stack("1x2:GTX 1080 Ti:11"), tmp_path)


@pytest.mark.long
def test_array_dependency_hold_priority_logs_cancel_and_history(user: User) -> None:
    user.pool.use_policy("priority")
    blocker = user.submit("--gpus", "2", "--name", "blocker", "--shell", "--", "echo begun; sleep 1000")
    user.pool.until(blocker, "Running")
    follow = [sys.executable, "-m", "gpu_flows.cli", "logs", "blocker", "--follow"]
    with subprocess.Popen(
        follow, env=user.stack.environment(), cwd=user.directory, stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        submit_dependent_jobs(user)
        check_waiting_jobs(user)
        user.run("cancel", blocker[:8])
        user.pool.until(blocker, "Cancelled")
        assert "begun" in following.stdout.read().splitlines(), "printed until the run has ended"
        assert following.wait() == 0
    last = user.run("why", "last", "--json").json["id"]
    user.pool.until(last, "Completed")
    assert user.run("why", "held", "--json").json["reason"] == "held", "it alone still waits"
    assert user.run("release", "held").code == 0
    user.pool.until(user.run("why", "held", "--json").json["id"], "Completed")
    assert "member 3 3" in user.run("logs", "seed[3]").out
    check_history(user)


def submit_dependent_jobs(user: User) -> None:
    assert "held" in user.run("submit", "--hold", "--name", "held", "--", "true").out
    words = ["--array", "1-3", "--name", "seed", "--shell"]
    members = user.run("submit", *words, "--json", "--", "echo member {index} $GPU_FLOWS_ARRAY_INDEX").json
    assert [member["run"] for member in members] == ["seed[1]", "seed[2]", "seed[3]"]
    after = f"seed[1],{members[2]['id'][:8]}"
    assert user.run("submit", "--after", after, "--name", "last", "--", "true").code == 0


def check_waiting_jobs(user: User) -> None:
    """The last member of the array comes first once its priority is raised; two jobs may not start yet."""
    assert user.run("priority", "seed[3]", "50").code == 0

    def reasons() -> dict[str, str]:
        return {job["name"]: job["reason"] for job in user.run("queue", "--json").json["waiting"]}

    found = eventually(
        lambda: len(known := reasons()) == 5 and [*known][:3] == ["seed[3]", "seed[1]", "seed[2]"] and known,
        "all five wait, in the new order",
    )
    assert (found["held"], found["last"]) == ("held", "dependency")


def check_history(user: User) -> None:
    def states() -> dict[str, str]:
        return {job["name"]: job["state"] for job in user.run("history", "--json").json}

    done = dict.fromkeys(["held", "last", "seed[1]", "seed[2]", "seed[3]"], "completed")
    eventually(lambda: states() == {**done, "blocker": "cancelled"}, "every job in the history")
    [cancelled] = user.run("history", "--state", "cancelled", "--json").json
    assert (cancelled["name"], cancelled["devices"]) == ("blocker", "node-1:0,1")


def test_all_jobs_are_cancelled_and_a_failed_dependency_refuses(user: User) -> None:
    blocker = user.submit("--gpus", "2", "--name", "blocker", "--", "sleep", "1000")
    user.pool.until(blocker, "Running")
    waiting = user.submit("--name", "waiting", "--", "true")
    after = user.submit("--name", "after", "--after", waiting, "--hold", "--", "true")
    assert user.run("cancel", "--all").code == 2, "nobody is there to confirm it"
    assert user.pool.state(blocker) == "Running"
    user.run("cancel", "--all", "--yes")
    for run in (after, waiting, blocker):
        user.pool.until(run, "Cancelled")
    refused = user.run("submit", "--wait", "--after", "waiting", "--name", "late", "--", "true")
    assert (refused.code, "Refused" in refused.out) == (1, True), refused
    assert "ended as Cancelled" in user.run("why", "late").out
