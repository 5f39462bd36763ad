"""The command line on a real server with a real worker: from `submit` to a SQL answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line.run import Said, gpu_flows_process
from conftest import eventually
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow


class Person:
    """Somebody at a terminal, with a pool to use."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.stack, self.directory, self.pool = stack, directory, Pool(stack)

    def types(self, *words: str) -> Said:
        return gpu_flows_process(*words, env=self.stack.environment(), cwd=self.directory)

    def submits(self, *words: str) -> str:
        return str(self.types("submit", "--json", *words).json["id"])


@pytest.fixture
def person(new_stack: Callable[..., Stack], tmp_path: Path) -> Person:
    return Person(new_stack("2x1:GTX 1080 Ti:11"), tmp_path)


@pytest.fixture
def bare(new_stack: Callable[..., Stack], tmp_path: Path) -> Person:
    """Somebody whose pool has no worker."""
    return Person(new_stack("2x1:GTX 1080 Ti:11", worker=False), tmp_path)


def test_a_command_is_submitted_followed_and_found_again(person: Person, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys; print('trained', sys.argv[1:], os.environ['COLOUR'])")
    words = ["--gpus", "1", "--memory", "4", "--name", "first", "--user", "ada", "--env", "COLOUR=red"]
    said = person.types("submit", *words, "--wait", "--", "python", "train.py", "--epochs", "3 4")
    assert said.code == 0, said
    assert "Completed" in said.out
    assert "/runs/flow-run/" in said.out
    assert "Completed" in said.err, "every state is told while one waits"
    run = person.types("why", "first", "--json").json
    assert (run["state"], run["user"], run["gpus"]) == ("Completed", "ada", 1)
    eventually(
        lambda: "trained ['--epochs', '3 4'] red" in person.pool.logs(run["id"]), "its output, in its logs"
    )
    assert person.types("why", run["id"][:8], "--json").json["id"] == run["id"]

    def recorded() -> bool:
        asked = "select user_name, gpus, gpu_memory_mb, outcome from job_history"
        return person.types("sql", "--csv", asked).out.endswith("ada,1,4096,completed\n")

    eventually(recorded, "the warehouse knows it")


def test_a_command_that_fails_makes_submit_fail(person: Person) -> None:
    said = person.types("submit", "--shell", "--wait", "--", "echo gone wrong; exit 3")
    assert said.code == 1
    assert "Failed" in said.out
    why = person.types("why", str(said.out.split()[1]))
    assert "exit code 3" in why.out
    assert "gone wrong" in why.out


def test_what_the_pool_does_not_offer_is_refused_and_nothing_is_submitted(bare: Person) -> None:
    for option, value, says in (
        ("--gpus", "0", "0 is less than the minimum of 1."),
        ("--gpus", "-1", "-1 is less than the minimum of 1."),
        ("--gpus", "1000000", "1000000 is greater than the maximum"),
        ("--memory", "-5", "-5"),
        ("--priority", "5000", "5000 is greater than the maximum"),
    ):
        said = bare.types("submit", option, value, "--", "true")
        assert said.code == 2
        assert f"Error: {option}: {says}" in said.err
        assert len(said.err.splitlines()) == 2
    assert bare.types("queue", "--json").json["waiting"] == []


def test_without_a_worker_the_server_tells_who_waits(bare: Person) -> None:
    said = bare.types(
        "submit", "--name", "lonely", "--gpus", "2", "--priority", "7", "--user", "eve", "--", "true"
    )
    assert said.code == 0
    assert "No worker serves pool" in said.err
    view = bare.types("queue", "--json").json
    assert view["source"] == "server"
    assert "No worker serves" in view["trouble"]
    [job] = view["waiting"]
    assert (job["name"], job["gpus"], job["priority"], job["user"]) == ("lonely", 2, 7, "eve")
    assert "lonely" in bare.types("queue").out
    why = bare.types("why", "lonely", "--json").json
    assert (why["reason"], "prefect worker start" in why["fix"]) == ("no_worker", True)
    saved = bare.types("policy", "set", "round_robin")
    assert saved.code == 0
    assert "No worker serves pool" in saved.out
    assert bare.types("gpus", "--json").json["source"] == "declared"


def test_names_that_are_not_there_are_told_with_those_that_are(bare: Person) -> None:
    said = bare.types("submit", "nvidia-smi")
    assert said.code == 1
    assert f"Those of pool {bare.stack.pool!r}: {bare.stack.pool}." in said.err
    assert "gpu-flows submit -- nvidia-smi" in said.err
    for words in (["queue"], ["submit", "train"], ["policy", "show"]):
        said = bare.types(*words, "--pool", "nowhere")
        assert said.code == 1
        assert "no work pool 'nowhere'" in said.err
    assert bare.types("why", "nobody").code == 1
    assert bare.types("why", "00000000-0000-4000-8000-000000000000").code == 1


def test_why_tells_each_way_a_run_can_wait_and_end(person: Person) -> None:
    holder = person.submits("--gpus", "1", "--name", "holder", "--", "sleep", "300")
    second = person.submits("--gpus", "1", "--", "sleep", "300")
    for run in (holder, second):
        person.pool.until(run, "Running")
    person.submits("--name", "patient", "--", "true")
    impossible = person.submits("--gpus", "2", "--name", "too-big", "--", "true")
    later = datetime.now(UTC) + timedelta(hours=3)
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": later.isoformat()}}
    future = person.pool.post(
        f"/deployments/{person.pool.deployment}/create_flow_run",
        {"state": state, "parameters": {"command": "true"}, "name": "tomorrow"},
    )
    person.pool.until(impossible, "Refused")
    waiting = eventually(
        lambda: (said := person.types("why", "patient", "--json").json)["state"] == "waiting" and said,
        "the worker counts it",
    )
    assert (waiting["place"], waiting["reason"]) == (1, "capacity")
    assert person.types("why", "holder", "--json").json["devices"] == ["SIM-node-1-0"]
    refused = person.types("why", "too-big", "--json").json
    assert (refused["state"], "largest node has 1" in refused["why"]) == ("Refused", True)
    assert person.types("why", future["id"], "--json").json["reason"] == "not_due"
    view = person.types("queue", "--all", "--json").json
    assert [job["name"] for job in view["waiting"]] == ["patient"]
    assert {job["name"] for job in view["running"]} >= {"holder"}
    [first, _] = person.types("gpus", "--json").json["devices"]
    assert first["jobs"] == ["holder"]
    person.pool.cancel(holder)
    person.pool.until(holder, "Cancelled")
    eventually(
        lambda: person.types("why", "holder", "--json").json["state"] == "Cancelled", "why tells the end"
    )


def test_the_policy_is_set_and_in_force_when_the_command_returns(person: Person) -> None:
    said = person.types("policy", "set", "round_robin", "--option", "wait_for_turn=true", "--json")
    assert said.code == 0, said
    assert said.json["in_force"] is True
    shown = person.types("policy", "show", "--json").json
    assert (shown["says"]["name"], shown["in_force"]) == ("round_robin", "round_robin")
    assert shown["options"]["wait_for_turn"] is True
    assert person.types("policy", "set", "round_robin", "--option", "wait_for_turn=perhaps").code == 2
    assert person.types("policy", "show", "--json").json == shown, "a bad edit never reaches the block"

    person.pool.save_policy("lifo")  # what a slip in the UI does
    eventually(lambda: "'lifo'" in person.types("policy", "show").out, "the refusal is shown")
    assert person.types("policy", "show", "--json").json["in_force"] == "round_robin"
    mended = person.types("policy", "set", "fifo")
    assert (mended.code, "in force" in mended.out) == (0, True)

    other = person.types("policy", "set", "fifo", "--block", f"{person.stack.pool}-new")
    assert (other.code, "goes on as before" in other.out) == (0, True), "a block that was not there"
    swaps = "select count(*) from swaps where to_policy = 'round_robin'"
    eventually(lambda: person.types("sql", "--csv", swaps).out.endswith("\n1\n"), "the swap is a fact")


def test_a_doctor_finds_a_running_stack_well(person: Person) -> None:
    said = person.types("doctor", "--json")
    assert said.code == 0, said.out
    levels = {(each["check"], each["level"]) for each in said.json["findings"]}
    assert {("server", "ok"), ("pool", "ok"), ("worker", "ok"), ("blocks", "ok"), ("clock", "ok")} <= levels
    assert ("server", "warn") in levels, "no password is set"
