"""A job on a real server with a real worker, from the creation of its run to the result of a SQL query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import eventually
from live import Pool, wait_for_file

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow


def test_a_job_gets_its_devices_runs_and_is_recorded(new_stack: Callable[..., Stack]) -> None:
    pool = Pool(new_stack("2x2:GTX 1080 Ti:11"))
    run = pool.submit("echo mine: $CUDA_VISIBLE_DEVICES", gpus=2, gpu_memory_gb=4, priority=3)
    assert pool.until(run, "Completed", "Failed", "Crashed")["state"]["name"] == "Completed"
    assert "AwaitingGPU" not in pool.states(run), "devices were free, so it did not wait"
    eventually(lambda: "mine: SIM-node-1-0,SIM-node-1-1" in pool.logs(run), "its output is in its logs")

    pool.until_recorded(f"select outcome from job_ends where job_id = '{run}'", ("completed",))
    history = pool.sql(
        "select gpus, outcome, attempts, policy, turnaround_s >= run_s, run_s > 0 from job_history"
    )
    assert history == [(2, "completed", 1, "fifo", True, True)]
    held = pool.sql("select device_id, memory_mb from allocations order by device_id")
    assert held == [("SIM-node-1-0", 4096), ("SIM-node-1-1", 4096)]
    pool.until_recorded("select count(*) > 0 from samples where utilization is not null", (True,))
    assert pool.sql("select policy, jobs from policy_summary") == [("fifo", 1)]


def test_jobs_get_linked_devices_and_the_addresses_of_their_nodes(new_stack: Callable[..., Stack]) -> None:
    pool = Pool(new_stack("2x4:GTX 1080 Ti:11"))
    alone = pool.submit("sleep 600")
    pool.until(alone, "Running")  # on the first device
    cluster = pool.block("gpu-cluster")["data"]
    linked = [{**nodes, "links": "nvlink:2"} for nodes in cluster["nodes"]]
    pool.save_block("gpu-cluster", {**cluster, "nodes": linked})
    eventually(lambda: all(device["links"] for device in pool.status().devices), "the links are known")
    pair = pool.submit("echo mine: $CUDA_VISIBLE_DEVICES", gpus=2)
    pool.until(pair, "Completed")
    eventually(lambda: "mine: SIM-node-1-2,SIM-node-1-3" in pool.logs(pair), "it has a pair")
    wide = pool.submit("echo to $MASTER_ADDR: $GPU_FLOWS_PEERS", gpus=6, may_span_nodes=True)
    pool.until(wide, "Completed")
    eventually(lambda: "to 127.0.0.1: " in pool.logs(wide), "it knows where to meet")
    assert '{"node": "node-2", "address": "127.0.0.1", "devices": [0, 1, 2]}' in pool.logs(wide)
    pool.cancel(alone)


def test_waiting_runs_show_their_reason_and_start_in_order(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    pool = Pool(new_stack("1x4:GTX 1080 Ti:11"))
    first = pool.submit(wait_for_file(tmp_path / "go"), gpus=3)
    pool.until(first, "Running")
    second, third = pool.submit("true", gpus=4), pool.submit("true", gpus=1)
    waiting = pool.until(second, "AwaitingGPU")
    assert waiting["state"]["type"] == "SCHEDULED", "a worker that is killed leaves no run claimed"
    assert "1st in the queue, needs 4 GPUs on one node; 1 such is free" in waiting["state"]["message"]
    behind = pool.until(third, "AwaitingGPU")["state"]["message"]
    assert "2nd in the queue" in behind
    assert "jobs before it come first" in behind
    (tmp_path / "go").touch()
    for run in (first, second, third):
        pool.until(run, "Completed")
    started = eventually(
        lambda: (
            (rows := pool.sql("select job_id from attempts order by started")) and len(rows) == 3 and rows
        ),
        "three attempts are recorded",
    )
    assert [row[0] for row in started] == [first, second, third]


def test_the_policy_is_swapped_while_jobs_run_and_an_invalid_edit_changes_nothing(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    pool = Pool(new_stack("3x1:GTX 1080 Ti:11"))
    running = pool.submit(wait_for_file(tmp_path / "go"))
    pool.until(running, "Running")
    process = min(pool.processes(running))
    pool.save_policy("round_robin", wait_for_turn=True)
    eventually(lambda: pool.status().policy["name"] == "round_robin", "the policy is swapped")
    assert pool.status().policy["options"]["wait_for_turn"] is True

    for name, options, error in (
        ("lifo", {}, "no policy 'lifo'"),
        ("fifo", {"utilization_threshold": 900}, "utilization_threshold"),
        ("os:system", {}, "no policy 'os:system'"),
    ):
        pool.save_policy(name, **options)
        eventually(lambda error=error: error in pool.status().policy["error"], f"{error} is shown")
        assert pool.status().policy["name"] == "round_robin", "the old policy stays"

    others = [pool.submit("true"), pool.submit("true")]
    assert process in pool.processes(running), "the running job was not restarted"
    (tmp_path / "go").touch()
    for run in [*others, running]:
        assert pool.until(run, "Completed", "Failed", "Crashed")["state"]["name"] == "Completed"
    assert pool.states(running).count("Running") == 1
    swaps = eventually(
        lambda: (
            (rows := pool.sql("select from_policy, to_policy, error <> '' from swaps order by time"))
            and len(rows) == 5
            and rows
        ),
        "the swaps are recorded",
    )
    assert swaps[:2] == [("", "fifo", False), ("fifo", "round_robin", False)]
    assert [row[2] for row in swaps[2:]] == [True, True, True]
    counted = "select policy, count(*) from attempts group by policy order by policy"
    pool.until_recorded(counted, ("fifo", 1), ("round_robin", 2))


@pytest.mark.parametrize(
    "wrong", [{"gpus": 0}, {"gpus": -1}, {"gpus": 10**6}, {"gpu_memory_gb": "lots"}, {"gpus": "two"}]
)
def test_the_server_refuses_invalid_input(new_stack: Callable[..., Stack], wrong: dict[str, Any]) -> None:
    pool = Pool(new_stack(worker=False))
    with pytest.raises(httpx.HTTPStatusError) as refusal:
        pool.submit("true", **wrong)
    assert refusal.value.response.status_code == 422
    assert next(iter(wrong)) in refusal.value.response.text


def test_impossible_runs_are_refused_with_a_reason_and_others_run(
    new_stack: Callable[..., Stack],
) -> None:
    pool = Pool(new_stack("2x2:GTX 1080 Ti:11"))
    impossible = [
        (pool.submit("true", gpus=3), "the largest node has 2"),
        (pool.submit("true", gpus=4000, may_span_nodes=True), "the whole pool has 4"),
        (pool.submit("true", gpu_models=["H100"]), "matching H100"),
        (pool.submit("true", gpu_memory_gb=12), "with 12 GB"),
    ]
    image = pool.submit("true", image="busybox")
    spread = pool.submit("true", gpus=3, may_span_nodes=True)
    for run, reason in impossible:
        state = pool.until(run, "Refused")["state"]
        assert state["type"] == "FAILED"
        assert reason in state["message"]
    assert "image 'busybox'" in pool.until(image, "Refused")["state"]["message"]
    pool.until(spread, "Completed")
    pool.until_recorded("select count(*) from job_ends where outcome = 'refused'", (5,))


def test_a_command_instead_of_the_flow(new_stack: Callable[..., Stack]) -> None:
    """The job variable `command` replaces the flow, as in other Prefect workers. The worker reports its
    state."""
    pool = Pool(new_stack())
    failing, completing, invalid = map(pool.command, ("sh -c 'exit 3'", "sleep 0.1", 'echo "it'))
    assert "No closing quotation" in pool.until(invalid, "Crashed")["state"]["message"]
    assert "exit code 3" in pool.until(failing, "Failed")["state"]["message"]
    pool.until(completing, "Completed")
