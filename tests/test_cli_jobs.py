"""The commands that change jobs or read their output: logs, hold, release, priority, cancel, drain."""

from __future__ import annotations

import csv
import io
import threading

import pytest
from command_line.pool_server import PoolServer, at
from command_line.run import HOSTILE_TEXT, expect_error, gpu_flows
from command_line.worker import device, running_job, write_status
from conftest import eventually

from gpu_flows.config.paths import pool_folder
from gpu_flows.prefect_api.run_edits import RUN_EDITED

pytest_plugins = ["command_line.fixtures"]

# logs


def test_logs_are_printed_in_order_of_time(pool_server: PoolServer) -> None:
    run = pool_server.add_run("noisy", "COMPLETED")
    other = pool_server.add_run("other", "COMPLETED")
    for age, text in ((1, "second"), (2, "first"), (0, "last")):
        pool_server.add_log(run["id"], text, age)
    pool_server.add_log(other["id"], "not mine")
    for wanted in ("noisy", run["id"], run["id"][:8]):
        assert gpu_flows("logs", wanted).out == "first\nsecond\nlast\n"
    assert gpu_flows("logs", "noisy", "--tail", "2").out == "second\nlast\n"
    assert gpu_flows("logs", "noisy", "--tail", "0").out == ""
    assert gpu_flows("logs", "noisy", "-t").out.splitlines()[0][8:] == "  first"
    assert "no run 'nobody'" in expect_error(gpu_flows("logs", "nobody"), code=1)


def test_long_logs_are_read_page_by_page(pool_server: PoolServer) -> None:
    run = pool_server.add_run("noisy", "COMPLETED")
    for number in range(450):
        pool_server.add_log(run["id"], str(number), 450 - number)
    assert gpu_flows("logs", "noisy").out.split() == [str(n) for n in range(450)]
    assert gpu_flows("logs", "noisy", "--tail", "300").out.split() == [str(n) for n in range(150, 450)]


def test_logs_mark_the_worker_and_escape_control_characters(pool_server: PoolServer) -> None:
    run = pool_server.add_run("noisy", "COMPLETED")
    pool_server.add_log(run["id"], "on node-2: GPU 1, 3", 2, logger="gpu_flows.worker")
    pool_server.add_log(run["id"], HOSTILE_TEXT, 1)
    pool_server.add_log(run["id"], "a\t\x1b[1mb\x1b[0m")
    printed = gpu_flows("logs", "noisy").out
    assert printed.startswith("[worker] on node-2: GPU 1, 3\n")
    assert "\x1b" not in printed
    assert printed.endswith("a       b\n"), "tabs become blanks, and colours are removed"
    first = gpu_flows("logs", "noisy", "--tail", "1", "--json").json
    assert (first["level"], first["message"]) == ("INFO", "a\t\x1b[1mb\x1b[0m")


def test_followed_logs_print_each_line_once_until_the_end(pool_server: PoolServer) -> None:
    run = pool_server.add_run("noisy", "RUNNING")
    pool_server.add_log(run["id"], "old", 3)
    pool_server.add_log(run["id"], "before", 2)

    def work() -> None:
        eventually(lambda: "before" in pool_server.read, "the first look")
        pool_server.add_log(run["id"], "newest")
        eventually(lambda: "newest" in pool_server.read, "the next look")
        pool_server.add_log(run["id"], "late, from another process", 1)  # older than a line already read
        pool_server.set_state(run["id"], "COMPLETED", "Completed")
        pool_server.add_log(run["id"], "Finished in state Completed()")

    threading.Thread(target=work).start()
    result = gpu_flows("logs", "noisy", "--follow", "--tail", "1")
    assert result.out.splitlines() == [
        "before",
        "newest",
        "late, from another process",
        "Finished in state Completed()",
    ]
    assert "ended: Completed" in result.err


def test_output_file_is_printed_if_the_server_has_no_logs(pool_server: PoolServer) -> None:
    run = pool_server.add_run("silent", "CRASHED")
    assert "has no logs yet; its state is Crashed" in gpu_flows("logs", "silent").err
    for attempt in (2, 10):
        folder = pool_folder("gpu") / "ended" / f"{run['id']}.{attempt}"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text(f"attempt {attempt}\nTraceback\x1b[2J\n")
    result = gpu_flows("logs", "silent")
    assert result.out == "attempt 10\nTraceback\\x1b[2J\n"
    assert "output.log" in result.err
    assert gpu_flows("logs", "silent", "--tail", "1").out == "Traceback\\x1b[2J\n"


# hold, release, priority


def test_waiting_job_is_held_released_and_reprioritized(pool_server: PoolServer) -> None:
    run = pool_server.add_run("patient", job_variables={"gpus": 2}, work_pool_id="the-pool")
    assert gpu_flows("hold", "patient").out == "patient (10000000): held.\n"
    ((event,),) = [body for path, _, body in pool_server.requests if path == "/events"]
    assert event["event"] == RUN_EDITED
    assert run["id"] in event["resource"]["prefect.resource.id"]
    assert event["related"][0]["prefect.resource.id"] == "prefect.work-pool.the-pool"
    assert pool_server.runs[run["id"]]["job_variables"] == {"gpus": 2, "hold": True}
    [[event]] = [body for path, _, body in pool_server.requests if path == "/events"]
    assert run["id"] in event["resource"]["prefect.resource.id"], "the worker is told at once"
    assert gpu_flows("release", run["id"][:8], "--json").json[0]["hold"] is False
    assert gpu_flows("priority", "patient", "7").out == "patient (10000000): has priority 7.\n"
    for policy, remark in (("fifo", ", which the policy in force (fifo) does not use"), ("priority", "")):
        write_status(policy={"name": policy, "options": {}, "serving": policy, "error": ""})
        assert gpu_flows("priority", "patient", "7").out.endswith(f"has priority 7{remark}.\n")
    assert gpu_flows("priority", "patient", "--", "-7").code == 0
    assert pool_server.runs[run["id"]]["job_variables"] == {"gpus": 2, "hold": False, "priority": -7}


def test_only_a_waiting_job_is_changed(pool_server: PoolServer) -> None:
    pool_server.add_run("busy", "RUNNING")
    waiting = pool_server.add_run("patient")
    result = gpu_flows("hold", "busy", "patient", "nobody")
    assert result.code == 1
    assert "busy (10000000) is Running. Only a waiting job can be changed." in result.err
    assert "no run 'nobody'" in result.err
    assert pool_server.runs[waiting["id"]]["job_variables"] == {"hold": True}, "the others are held"
    assert "patient (20000000): held." in result.out


# suspend, resume


def test_job_is_suspended_shown_and_resumed(pool_server: PoolServer) -> None:
    run = pool_server.add_run("busy", "RUNNING")
    assert "busy (10000000): suspended" in gpu_flows("suspend", "busy").out
    assert run["state"]["state_details"] == {"pause_reschedule": True}
    shown = gpu_flows("queue").out
    assert "gpu-flows resume 10000000" in shown
    assert "0 waiting, 0 running, 1 suspended" in shown
    assert [job["name"] for job in gpu_flows("queue", "--json").json["suspended"]] == ["busy"]
    found = gpu_flows("why", "busy", "--json").json
    assert (found["reason"], found["fix"]) == ("suspended", "Resume it: gpu-flows resume 10000000")
    [job] = gpu_flows("history", "--state", "suspended", "--json").json
    assert job["state"] == "suspended"
    assert "busy (10000000): resumed" in gpu_flows("resume", "busy").out
    assert gpu_flows("queue", "--json").json["suspended"] == []
    assert "Only a suspended job can be resumed" in expect_error(gpu_flows("resume", "busy"), code=1)
    assert "Only a running job can be suspended" in expect_error(gpu_flows("suspend", "busy"), code=1)


def test_refusal_to_suspend_is_told(pool_server: PoolServer) -> None:
    run = pool_server.add_run("busy", "RUNNING")
    refusal = {"status": "ABORT", "details": {"reason": "Cannot suspend subflows."}}
    pool_server.answers[f"/flow_runs/{run['id']}/set_state"] = (200, refusal)
    assert "Cannot suspend subflows." in expect_error(gpu_flows("suspend", "busy"), code=1)


def test_all_jobs_are_cancelled_also_suspended_ones(pool_server: PoolServer) -> None:
    pool_server.add_run("asleep", "PAUSED", state_name="Suspended")
    assert len(gpu_flows("cancel", "--all", "--yes", "--json").json) == 1


# cancel


def test_jobs_of_a_user_are_cancelled(pool_server: PoolServer) -> None:
    pool_server.add_run("hers")
    pool_server.add_run("his", tags=["user:bob"])
    pool_server.add_run("running", "RUNNING")
    pool_server.add_run("over", "COMPLETED")
    pool_server.add_run("hers too")
    error = expect_error(gpu_flows("cancel", "--user", "ada"))
    assert "This would cancel 3 jobs: hers too (50000000), hers (10000000), running (30000000)" in error
    assert "--yes" in error
    cancelled = gpu_flows("cancel", "--user", "ada", "--yes", "--json").json
    assert [(run["run"], run["state"]) for run in cancelled] == [
        ("hers too", "Cancelling"),
        ("hers", "Cancelling"),
        ("running", "Cancelling"),
    ]
    everything = gpu_flows("cancel", "--all", "--yes", "--json").json
    assert {run["run"] for run in everything} == {"his", "hers", "hers too", "running"}, (
        "those that have not ended"
    )
    assert "No job of eve waits, runs or is suspended" in gpu_flows("cancel", "--user", "eve", "--yes").err


def test_submitted_job_belongs_to_its_user_not_to_that_of_the_deployment(pool_server: PoolServer) -> None:
    pool_server.deployments[1]["tags"] = ["user:ann"]
    assert gpu_flows("submit", "train", "--user", "carl").code == 0
    [run] = pool_server.runs.values()
    run["tags"] += ["user:ann"]  # as Prefect does
    assert gpu_flows("queue", "--json").json["waiting"][0]["user"] == "carl"
    assert gpu_flows("cancel", "--user", "ann", "--yes", "--json").json == []
    assert len(gpu_flows("cancel", "--user", "carl", "--yes", "--json").json) == 1


@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize("words", [[], ["x", "--all"], ["--all", "--user", "ada"]])
def test_cancel_needs_one_way_to_choose(words: list[str]) -> None:
    assert "Name runs, or give --user NAME, or --all" in expect_error(gpu_flows("cancel", *words))


# drain, undrain


def test_node_is_drained_and_undrained(pool_server: PoolServer) -> None:
    write_status(devices=[device(), device(node="node-2")], running=[running_job()])
    result = gpu_flows("drain", "node-1")
    assert "node-1 is drained" in result.out
    assert "Still running there: busy (22222222)." in result.out
    assert pool_server.cluster == {"runtime": "process", "nodes": [], "drained": ["node-1"]}
    assert gpu_flows("drain", "node-1", "node-2", "--json").json["drained"] == ["node-1", "node-2"]
    assert "There is no node 'node-3'.\nNodes: node-1, node-2." in expect_error(gpu_flows("drain", "node-3"))
    assert gpu_flows("undrain", "node-1").out == "node-1 is in service again.\n"
    assert pool_server.cluster["drained"] == ["node-2"]
    assert "'node-1' is not drained" in expect_error(gpu_flows("undrain", "node-1"), code=1)


# history


def test_history_without_a_warehouse_comes_from_the_server(pool_server: PoolServer) -> None:
    times = {"start_time": at(-60), "end_time": at(-30), "total_run_time": 30.0}
    pool_server.add_run("done", "COMPLETED", **times)
    pool_server.add_run("refused", "FAILED", state_name="Refused", tags=["user:bob"], end_time=at(-90))
    pool_server.add_run("patient")
    result = gpu_flows("history", "--json")
    assert "read from the Prefect server" in result.err
    found = {job["name"]: job for job in result.json}
    assert {name: job["state"] for name, job in found.items()} == {
        "done": "completed",
        "refused": "refused",
        "patient": "waiting",
    }
    assert (round(found["done"]["waited_s"]), found["done"]["ran_s"]) == (40, 30)
    assert [job["name"] for job in gpu_flows("history", "--state", "ended", "--json").json] == [
        "refused",
        "done",
    ]
    assert [job["name"] for job in gpu_flows("history", "--user", "bob", "--json").json] == ["refused"]
    [header, row] = csv.reader(io.StringIO(gpu_flows("history", "--limit", "1", "--csv").out))
    assert dict(zip(header, row, strict=True))["name"] == "patient"


@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--state", "complete"], "Did you mean 'completed'?"),
        (["--since", "yesterday"], "--since: 'yesterday' is no duration"),
        (["--json", "--csv"], "choose one"),
    ],
)
def test_history_refuses_unknown_values(words: list[str], expected: str) -> None:
    assert expected in expect_error(gpu_flows("history", *words))
