"""The command line on a real server with a real worker: from `submit` to a SQL answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line.user import User
from conftest import eventually

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow


@pytest.fixture
def user(new_stack: Callable[..., Stack], tmp_path: Path) -> User:
    return User(new_stack("2x1:GTX 1080 Ti:11"), tmp_path)


@pytest.fixture
def user_without_worker(new_stack: Callable[..., Stack], tmp_path: Path) -> User:
    """A user whose pool has no worker."""
    return User(new_stack("2x1:GTX 1080 Ti:11", worker=False), tmp_path)


def test_command_is_submitted_followed_and_recorded(user: User, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys; print('trained', sys.argv[1:], os.environ['COLOUR'])")
    words = ["--gpus", "1", "--memory", "4", "--name", "first", "--user", "ada", "--env", "COLOUR=red"]
    result = user.run("submit", *words, "--wait", "--", "python", "train.py", "--epochs", "3 4")
    assert result.code == 0, result
    assert "Completed" in result.out
    assert "/runs/flow-run/" in result.out
    assert "Completed" in result.err, "--wait prints every state"
    assert "trained ['--epochs', '3 4'] red\n" in result.out, "and the output"
    run = user.run("why", "first", "--json").json
    assert (run["state"], run["user"], run["gpus"]) == ("Completed", "ada", 1)
    eventually(
        lambda: "trained ['--epochs', '3 4'] red" in user.pool.logs(run["id"]), "its output, in its logs"
    )
    assert user.run("why", run["id"][:8], "--json").json["id"] == run["id"]

    def recorded() -> bool:
        asked = "select user_name, gpus, gpu_memory_mb, outcome from job_history"
        return user.run("sql", "--csv", asked).out.endswith("ada,1,4096,completed\n")

    eventually(recorded, "the job is in the warehouse")


def test_submit_fails_if_the_command_fails(user: User) -> None:
    result = user.run("submit", "--name", "wrong", "--shell", "--wait", "--", "echo gone wrong; exit 3")
    assert result.code == 1
    assert "Failed" in result.out
    why = user.run("why", "wrong")
    assert "exit code 3" in why.out
    assert "gone wrong" in why.out


def test_values_out_of_range_are_refused(user_without_worker: User) -> None:
    for option, value, expected in (
        ("--gpus", "0", "0 is less than the minimum of 1."),
        ("--gpus", "-1", "-1 is less than the minimum of 1."),
        ("--gpus", "1000000", "1000000 is greater than the maximum"),
        ("--priority", "5000", "5000 is greater than the maximum"),
    ):
        result = user_without_worker.run("submit", option, value, "--", "true")
        assert result.code == 2
        assert f"Error: {option}: {expected}" in result.err
        assert len(result.err.splitlines()) == 2
    assert user_without_worker.run("queue", "--json").json["waiting"] == []


def test_queue_without_a_worker_comes_from_the_server(user_without_worker: User) -> None:
    result = user_without_worker.run(
        "submit", "--name", "lonely", "--gpus", "2", "--priority", "7", "--user", "eve", "--", "true"
    )
    assert result.code == 0
    assert "No worker serves pool" in result.err
    view = user_without_worker.run("queue", "--json").json
    assert view["source"] == "server"
    assert "No worker serves" in view["trouble"]
    [job] = view["waiting"]
    assert (job["name"], job["gpus"], job["priority"], job["user"]) == ("lonely", 2, 7, "eve")
    assert "lonely" in user_without_worker.run("queue").out
    why = user_without_worker.run("why", "lonely", "--json").json
    assert (why["reason"], "prefect worker start" in why["fix"]) == ("no_worker", True)
    saved = user_without_worker.run("policy", "set", "round_robin")
    assert saved.code == 0
    assert "No worker serves pool" in saved.out
    assert user_without_worker.run("gpus", "--json").json["source"] == "declared"


def test_errors_for_missing_names_list_the_existing_ones(user_without_worker: User) -> None:
    result = user_without_worker.run("submit", "nvidia-smi")
    assert result.code == 1
    pool = user_without_worker.stack.pool
    assert f"Those of pool {pool!r}: {pool}." in result.err
    assert "gpu-flows submit -- nvidia-smi" in result.err
    for words in (["queue"], ["submit", "train"], ["policy", "show"]):
        result = user_without_worker.run(*words, "--pool", "nowhere")
        assert result.code == 1
        assert "no work pool 'nowhere'" in result.err
    assert user_without_worker.run("why", "nobody").code == 1
    assert user_without_worker.run("why", "00000000-0000-4000-8000-000000000000").code == 1


def test_why_explains_every_state_of_a_run(user: User) -> None:
    holder = user.submit("--gpus", "1", "--name", "holder", "--", "sleep", "300")
    second = user.submit("--gpus", "1", "--", "sleep", "300")
    for run in (holder, second):
        user.pool.until(run, "Running")
    user.submit("--name", "patient", "--", "true")
    refused = user.run("submit", "--wait", "--gpus", "2", "--name", "too-big", "--", "true")
    assert (refused.code, "largest node has 1" in refused.out) == (1, True), "submit itself tells"
    later = datetime.now(UTC) + timedelta(hours=3)
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": later.isoformat()}}
    future = user.pool.post(
        f"/deployments/{user.pool.deployment}/create_flow_run",
        {"state": state, "parameters": {"command": "true"}, "name": "tomorrow"},
    )
    waiting = eventually(
        lambda: (result := user.run("why", "patient", "--json").json)["state"] == "waiting" and result,
        "it is in the worker's queue",
    )
    assert (waiting["place"], waiting["reason"]) == (1, "capacity")
    assert user.run("why", "holder", "--json").json["devices"] == ["SIM-node-1-0"]
    too_big = user.run("why", "too-big", "--json").json
    assert (too_big["state"], "largest node has 1" in too_big["why"]) == ("Refused", True)
    assert user.run("why", future["id"], "--json").json["reason"] == "not_due"
    view = user.run("queue", "--all", "--json").json
    assert [job["name"] for job in view["waiting"]] == ["patient"]
    assert {job["name"] for job in view["running"]} >= {"holder"}
    [first, _] = user.run("gpus", "--json").json["devices"]
    assert first["jobs"] == ["holder"]
    user.pool.cancel(holder)
    user.pool.until(holder, "Cancelled")
    eventually(
        lambda: user.run("why", "holder", "--json").json["state"] == "Cancelled", "`why` shows the end"
    )


def test_policy_is_in_force_when_policy_set_returns(user: User) -> None:
    result = user.run("policy", "set", "round_robin", "--option", "wait_for_turn=true", "--json")
    assert result.code == 0, result
    assert result.json["in_force"] is True
    shown = user.run("policy", "show", "--json").json
    assert (shown["says"]["name"], shown["in_force"]) == ("round_robin", "round_robin")
    assert shown["options"]["wait_for_turn"] is True
    assert user.run("policy", "set", "round_robin", "--option", "wait_for_turn=perhaps").code == 2
    assert user.run("policy", "show", "--json").json == shown, "an invalid edit never reaches the block"

    user.pool.save_policy("lifo")  # a wrong edit in the UI
    eventually(lambda: "'lifo'" in user.run("policy", "show").out, "the refusal is shown")
    assert user.run("policy", "show", "--json").json["in_force"] == "round_robin"
    corrected = user.run("policy", "set", "fifo")
    assert (corrected.code, "in force" in corrected.out) == (0, True)

    other = user.run("policy", "set", "fifo", "--block", f"{user.stack.pool}-new")
    assert (other.code, "its policy stays" in other.out) == (0, True), "a new block"
    swaps = "select count(*) from swaps where to_policy = 'round_robin'"
    eventually(lambda: user.run("sql", "--csv", swaps).out.endswith("\n1\n"), "the swap is a fact")


def test_doctor_finds_no_error_in_a_running_stack(user: User) -> None:
    result = user.run("doctor", "--json")
    assert result.code == 0, result.out
    levels = {(each["check"], each["level"]) for each in result.json["findings"]}
    assert {("server", "ok"), ("pool", "ok"), ("worker", "ok"), ("blocks", "ok"), ("clock", "ok")} <= levels
    assert ("server", "warn") in levels, "no password is set"
