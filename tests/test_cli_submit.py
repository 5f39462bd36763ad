"""`gpu-flows submit`: arrays, sweeps, dependencies, holds, values with units, and refusals."""

from __future__ import annotations

import getpass
import shlex
import threading
import time
from typing import Any

import pytest
from command_line.pool_server import PoolServer
from command_line.run import expect_error, gpu_flows
from command_line.worker import waiting_job, write_status

from gpu_flows.cli.jobs.arrays import list_members

pytest_plugins = ["command_line.fixtures"]


def submitted(server: PoolServer) -> list[dict[str, Any]]:
    return [body for path, _, body in server.requests if path.endswith("create_flow_run")]


# Values with units


@pytest.mark.parametrize(
    ("words", "variable", "value"),
    [
        (["--memory", "4"], "gpu_memory_gb", 4.0),
        (["--memory", "4GB"], "gpu_memory_gb", 4.0),
        (["--memory", "512MB"], "gpu_memory_gb", 0.5),
        (["--expected", "90"], "expected_seconds", 90.0),
        (["--expected", "1h30m"], "expected_seconds", 5400.0),
        (["--deadline", "2d"], "deadline_seconds", 172_800.0),
        (["--hold"], "hold", True),
    ],
)
def test_options_set_job_variables(
    words: list[str], variable: str, value: object, pool_server: PoolServer
) -> None:
    assert gpu_flows("submit", *words, "--", "true").code == 0
    assert submitted(pool_server)[0]["job_variables"] == {variable: value, "user": getpass.getuser()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--memory", "lots"], "write GB, or a value like 512MB"),
        (["--memory", "-5"], "--memory"),
        (["--expected", "soon"], "a value like 90s, 15m"),
        (["--array", "10-1"], "no range of indices"),
        (["--array", "x"], "no range of indices"),
        (["--array", "1-9:0"], "no range of indices"),
        (["--array", "1,1"], "contains an index twice"),
        (["--array", "1-100000"], "more than 10,000 jobs"),
        (["--array", "1-9%0"], "after % comes how many"),
        (["--array", "1-9%x"], "after % comes how many"),
        (["--sweep", "lr"], "NAME=VALUE,VALUE"),
        (["--sweep", "lr="], "NAME=VALUE,VALUE"),
        (["--sweep", "lr=1", "--sweep", "lr=2"], "same parameter twice"),
        (["--sweep", "index=1,2"], "Choose another name"),
        (["--sweep", "lr=1,2"], "the command does not contain {lr}"),
    ],
)
@pytest.mark.usefixtures("own_home")
def test_values_that_mean_nothing_are_refused(words: list[str], expected: str) -> None:
    assert expected in expect_error(gpu_flows("submit", *words, "--", "true"))


# Arrays and sweeps


@pytest.mark.parametrize(
    ("array", "indices"),
    [("1-4", "1 2 3 4"), ("0-90:30", "0 30 60 90"), ("7", "7"), ("1,3,5-7", "1 3 5 6 7"), ("2-3:5", "2")],
)
def test_indices_of_an_array(array: str, indices: str) -> None:
    assert [member.index for member in list_members(array, [])] == indices.split()


def test_array_fills_command_parameters_and_environment(pool_server: PoolServer) -> None:
    words = [
        "--array",
        "1-3",
        "--name",
        "seed",
        "--env",
        "OUT=/runs/{index}",
        "--param",
        "timeout_seconds={index}",
    ]
    result = gpu_flows("submit", *words, "--json", "--", "python", "train.py", "--seed", "{index}", "{other}")
    assert result.code == 0, result
    assert [run["run"] for run in result.json] == ["seed[1]", "seed[2]", "seed[3]"]
    third = submitted(pool_server)[2]
    assert third["parameters"]["command"] == "python train.py --seed 3 '{other}'"
    assert third["parameters"]["timeout_seconds"] == 3, "values are parsed after they are filled in"
    assert third["job_variables"]["env"] == {"GPU_FLOWS_ARRAY_INDEX": "3", "OUT": "/runs/3"}


def test_value_with_quotes_stays_one_word(pool_server: PoolServer) -> None:
    assert gpu_flows("submit", "--sweep", "who=it's me,you", "--", "echo", "{who}").code == 0
    command = submitted(pool_server)[0]["parameters"]["command"]
    assert shlex.split(command) == ["echo", "it's me"]


def test_sweep_of_a_deployment_sets_its_parameters(pool_server: PoolServer) -> None:
    schema = {"properties": {"lr": {}, "batch": {}, "seed": {}}}
    pool_server.deployments[1]["parameter_openapi_schema"] = schema
    result = gpu_flows(
        "submit", "train", "--sweep", "lr=0.1,0.01", "--sweep", "batch=32,64", "--param", "seed={index}"
    )
    assert result.code == 0, result
    assert [(body["name"], body["parameters"]) for body in submitted(pool_server)] == [
        ("train[lr=0.1,batch=32]", {"lr": 0.1, "batch": 32, "seed": 1}),
        ("train[lr=0.1,batch=64]", {"lr": 0.1, "batch": 64, "seed": 2}),
        ("train[lr=0.01,batch=32]", {"lr": 0.01, "batch": 32, "seed": 3}),
        ("train[lr=0.01,batch=64]", {"lr": 0.01, "batch": 64, "seed": 4}),
    ]
    assert "train[lr=0.01,batch=64]" in result.out


def test_limit_of_an_array_lets_each_job_wait_for_an_earlier_one(pool_server: PoolServer) -> None:
    other = pool_server.add_run("other")
    words = ["--array", "1-5%2", "--after-any", "other"]
    assert gpu_flows("submit", *words, "--", "true").code == 0
    runs = {run["name"]: run for run in pool_server.runs.values()}
    names = {run["id"]: name for name, run in runs.items()}
    waits = {
        name: [names[id] for id in run["job_variables"].get("after_any", [])] for name, run in runs.items()
    }
    assert waits == {
        "other": [],
        "command[1]": ["other"],
        "command[2]": ["other"],
        "command[3]": ["other", "command[1]"],
        "command[4]": ["other", "command[2]"],
        "command[5]": ["other", "command[3]"],
    }
    assert other["job_variables"] == {}


def test_array_and_sweep_are_combined(pool_server: PoolServer) -> None:
    words = ["--array", "1-2", "--sweep", "lr=1,2", "--name", "x", "--shell"]
    assert gpu_flows("submit", *words, "--", "run {index} {lr} > {index}.txt").code == 0
    commands = [body["parameters"]["command"] for body in submitted(pool_server)]
    assert commands == ["run 1 1 > 1.txt", "run 1 2 > 1.txt", "run 2 1 > 2.txt", "run 2 2 > 2.txt"]
    assert submitted(pool_server)[3]["name"] == "x[2,lr=2]"


# Names


def test_wrong_names_get_a_suggestion(pool_server: PoolServer) -> None:
    assert "Did you mean 'train'?" in expect_error(gpu_flows("submit", "trian"), code=1)
    fields = {"epochs": {}, "batch_size": {}}
    pool_server.deployments[1]["parameter_openapi_schema"] = {
        "properties": {"config": {"allOf": [{"$ref": "#/definitions/Config"}]}},
        "definitions": {"Config": {"properties": fields}},
    }
    error = expect_error(gpu_flows("submit", "train", "--param", "epoch=1"))
    assert "no parameter 'epoch'. It has: config, epochs, batch_size.\nDid you mean 'epochs'?" in error
    assert submitted(pool_server) == []


# Dependencies


def test_after_names_runs_by_name_and_id(pool_server: PoolServer) -> None:
    first, second = pool_server.add_run("first"), pool_server.add_run("second")
    assert gpu_flows("submit", "--after", f"first,{second['id'][:8]}", "--", "true").code == 0
    assert submitted(pool_server)[0]["job_variables"]["after"] == [first["id"], second["id"]]
    assert "no run 'nobody'" in expect_error(gpu_flows("submit", "--after", "nobody", "--", "true"), code=1)


def test_after_an_array_waits_for_all_its_jobs(pool_server: PoolServer) -> None:
    for name in ("seed[1]", "seed[2]", "seed[1]", "unseed[1]", "seeds", "train[lr=0.1,batch=32]"):
        pool_server.add_run(name)
    names = {run["id"]: run["name"] for run in pool_server.runs.values()}
    assert gpu_flows("submit", "--after", "seed,train[lr=0.1,batch=32]", "--", "true").code == 0
    after = submitted(pool_server)[0]["job_variables"]["after"]
    assert sorted(names[run_id] for run_id in after) == ["seed[1]", "seed[2]", "train[lr=0.1,batch=32]"]
    assert next(iter(names)) not in after, "the newest of each name"


# What the worker says first


def test_refusal_is_reported_at_once(pool_server: PoolServer) -> None:
    pool_server.workers = [{"status": "ONLINE"}]

    def refuse() -> None:
        while not pool_server.runs:
            time.sleep(0.01)
        pool_server.set_state(
            next(iter(pool_server.runs)), "FAILED", "Refused", "The whole pool has 4 of them."
        )

    threading.Thread(target=refuse).start()
    result = gpu_flows("submit", "--gpus", "64", "--", "true")
    assert result.code == 1
    assert "Refused" in result.out
    assert "The whole pool has 4 of them." in result.out


def test_submit_returns_once_the_job_is_queued(pool_server: PoolServer) -> None:
    write_status()

    def queue() -> None:
        while not pool_server.runs:
            time.sleep(0.01)
        write_status(waiting=[waiting_job("new", id=next(iter(pool_server.runs)), fix="Ask for less.")])

    threading.Thread(target=queue).start()
    result = gpu_flows("submit", "--", "true")
    assert result.code == 0
    assert "needs 2 GPUs on one node; 0 such are free. Ask for less." in result.out


def test_wait_for_many_jobs_prints_only_their_states(
    pool_server: PoolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_flows.cli.jobs.submit.MOST_STREAMED", 2)

    def run() -> None:
        while len(pool_server.runs) < 3:
            time.sleep(0.01)
        for run_id in list(pool_server.runs):
            pool_server.add_log(run_id, "epoch 1")
            pool_server.set_state(run_id, "COMPLETED", "Completed")

    threading.Thread(target=run).start()
    result = gpu_flows("submit", "--wait", "--array", "1-3", "--", "true")
    assert result.code == 0, result
    assert "epoch 1" not in result.out
    assert "command[3]  Completed" in result.err
    assert "only their states" in result.err


def test_wait_prints_output_and_states(pool_server: PoolServer) -> None:
    def run() -> None:
        while not pool_server.runs:
            time.sleep(0.01)
        run_id = next(iter(pool_server.runs))
        pool_server.set_state(run_id, "RUNNING", "Running")
        pool_server.add_log(run_id, "on node-1: GPU 0", logger="gpu_flows.worker")
        pool_server.add_log(run_id, "epoch 1")
        time.sleep(0.7)
        pool_server.set_state(run_id, "FAILED", "Failed", "exit code 3")
        time.sleep(0.7)  # the last lines of a flow arrive after its last state
        pool_server.add_log(run_id, "epoch \x1b[31m2\x1b[0m\x07")
        pool_server.add_log(run_id, "Finished in state Failed('exit code 3')")

    threading.Thread(target=run).start()
    result = gpu_flows("submit", "--wait", "--", "true")
    assert result.code == 1
    assert result.out.splitlines()[:3] == ["[worker] on node-1: GPU 0", "epoch 1", "epoch 2\\x07"]
    assert "Failed  exit code 3" in result.err
