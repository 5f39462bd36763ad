"""Runs are started, suspended and cancelled, and nodes and job variables edited, in Prefect's UIs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from conftest import eventually
from live import Pool
from prefect_ui.pages import TIMEOUT_MS, Ui

from gpu_flows.bootstrap.local_stack import Stack

pytest_plugins = ["prefect_ui.fixtures"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool(new_shared_stack: Callable[..., Stack]) -> Pool:
    pool = Pool(new_shared_stack("2x2:GTX 1080 Ti:11"))
    pool.use_parameters_of("command")
    return pool


@pytest.fixture(scope="module")
def training(pool: Pool) -> Pool:
    """The same pool with a deployment of `train`."""
    training = Pool(pool.stack, "train")
    training.use_parameters_of("train")
    return training


@pytest.fixture(autouse=True)
def free_devices(pool: Pool) -> Iterator[None]:
    yield
    status = pool.status()
    for job in [*status.running, *status.waiting]:
        pool.cancel(job["id"])
    eventually(lambda: not any(pool.holders().values()), "all devices are free")


def start_custom_run(ui: Ui, pool: Pool, fill: Callable[[], None], variables: str = "") -> str:
    """Start a custom run on the page of the pool's deployment, and return its id. On a busy machine V2 may
    draw its form anew while it is filled, and so lose a value; then it is filled again."""

    def act() -> None:
        ui.open(f"/deployments/deployment/{pool.deployment}/run", button="Submit")
        fill()
        if variables:
            ui.page.get_by_text("Additional Options").click()
            ui.fill_json("Job Variables", variables)
        ui.button("Submit").click()

    answer = ui.accepted(act, lambda request: "create_flow_run" in request.url, TIMEOUT_MS)
    return str(answer.json()["id"])


def act_on_run(ui: Ui, run: str, action: str) -> None:
    """Open the page of the run and click the action."""

    def act() -> None:
        ui.open(f"/runs/flow-run/{run}")
        ui.act_on_run(action)

    path = re.compile(rf"/flow_runs/{run}/(set_state|resume)$")
    ui.accepted(act, lambda request: bool(path.search(request.url)), TIMEOUT_MS)


def held_by(pool: Pool, run: str) -> list[str]:
    """The nodes of the devices that the run holds."""
    name = pool.run(run)["name"]
    return [device["node"] for device in pool.status().devices if name in device["jobs"]]


def test_a_command_gets_its_job_variables_and_is_cancelled(ui: Ui, pool: Pool) -> None:
    run = start_custom_run(ui, pool, lambda: ui.fill("command", value="sleep 600"), '{"gpus": 2}')
    pool.until(run, "Running")
    eventually(lambda: held_by(pool, run) == ["node-1", "node-1"], "it holds two devices")
    waiting = pool.command("sleep 600", gpus=2, nodes=["node-1"])
    # V2 asks for more lines only while a run is Running, so they have to be there when the page opens.
    eventually(lambda: "Waiting: " in pool.logs(waiting), "its logs say why it waits")

    ui.open(f"/runs/flow-run/{waiting}")
    ui.shows("Waiting: ")
    ui.open(f"/runs/flow-run/{run}")
    ui.shows("Starting on node-1: GPU 0-1")  # in the logs
    ui.shows("gpus:node-1:0-1")  # beside the run's name
    act_on_run(ui, run, "Cancel")
    pool.until(run, "Cancelled")
    pool.until(waiting, "Running")
    eventually(lambda: held_by(pool, waiting) == ["node-1", "node-1"], "the devices are the next run's")
    assert pool.processes(run) == []
    ui.open(f"/runs/flow-run/{waiting}")
    ui.shows("Starting on node-1: GPU 0-1")


def test_a_run_that_declines_devices_says_what_it_waits_for(ui: Ui, pool: Pool) -> None:
    policy = pool.block("gpu-scheduler")["data"]
    for node in ("node-1", "node-2"):
        pool.until(pool.command("sleep 600", nodes=[node]), "Running")
    pool.use_policy("dally", timers="manual", node_timer_s=3600)
    run = pool.command("sleep 600", gpus=2, may_span_nodes=True)
    declined = "declined a placement in one rack; waits up to"
    eventually(lambda: declined in pool.logs(run), "its logs say it")
    ui.open(f"/runs/flow-run/{run}")
    ui.shows(declined)
    pool.save_block("gpu-scheduler", policy)
    pool.until(run, "Running")


def test_a_training_is_configured_suspended_and_resumed(ui: Ui, training: Pool) -> None:
    def fill() -> None:
        ui.choose("config", "Model", option="cnn")
        ui.fill("config", "Epochs", value="100000")

    run = start_custom_run(ui, training, fill)
    parameters = training.run(run)["parameters"]["config"]
    assert (parameters["model"], parameters["epochs"]) == ("cnn", 100000)
    eventually(lambda: "samples/s" in training.logs(run), "it trains")

    act_on_run(ui, run, ui.suspend)
    training.until(run, "Suspended")
    eventually(lambda: not any(training.holders().values()), "its devices are free")
    assert training.processes(run) == []

    act_on_run(ui, run, "Resume")
    training.until(run, "Running")
    eventually(lambda: len(held_by(training, run)) == 1, "it holds one device again")
    eventually(lambda: "resumed from step" in training.logs(run), "it resumes")
    ui.open(f"/runs/flow-run/{run}")  # V2 asked for lines while the run was Running, and not since
    ui.shows("resumed from step")


def test_a_node_is_drained_and_a_wrong_cluster_changes_nothing(ui: Ui, pool: Pool) -> None:
    before = pool.block("gpu-cluster")["data"]
    ui.open(f"/blocks/block/{pool.block('gpu-cluster')['id']}/edit", button="Save")
    ui.add_to_list("Drained nodes", value="node-1")
    ui.save()
    assert pool.block("gpu-cluster")["data"]["drained"] == ["node-1"]

    def drained() -> set[str]:
        return {device["node"] for device in pool.status().devices if device["detail"] == "drained"}

    eventually(lambda: drained() == {"node-1"}, "the node is drained")
    run = pool.command("sleep 600")
    eventually(lambda: held_by(pool, run) == ["node-2"], "it starts on the other node")

    wrong = {**pool.block("gpu-cluster")["data"], "nodes": [{"cnt": 3}]}
    pool.save_block("gpu-cluster", wrong)
    eventually(lambda: "Did you mean 'count'?" in pool.status().trouble, "the pool says what is wrong")
    assert len(pool.status().devices) == 4
    pool.save_block("gpu-cluster", before)
    eventually(lambda: not drained() and not pool.status().trouble, "the cluster is as it was")


def test_the_network_table_is_edited_and_links_stay(ui: Ui, pool: Pool) -> None:
    before = pool.block("gpu-cluster")["data"]
    linked = [{**nodes, "links": "nvlink:2"} for nodes in before["nodes"]]
    pool.save_block("gpu-cluster", {**before, "nodes": linked})

    def name_table(table: str) -> None:
        ui.open(f"/blocks/block/{pool.block('gpu-cluster')['id']}/edit", button="Save")
        ui.fill("Network table", value=table)
        ui.save()
        assert pool.block("gpu-cluster")["data"]["network"] == table

    name_table("daly")
    eventually(lambda: "Did you mean 'dally'?" in pool.status().trouble, "the pool says what is wrong")
    name_table("dally")
    eventually(lambda: not pool.status().trouble, "the table is in force")
    links = [device["links"][0]["devices"] for device in pool.status().devices]
    assert links == [[0, 1]] * 4
    pool.save_block("gpu-cluster", before)
    eventually(lambda: not any(device["links"] for device in pool.status().devices), "it is as it was")


def test_a_default_of_the_pool_applies_to_new_runs(ui: Ui, pool: Pool) -> None:
    ui.open(f"/work-pools/work-pool/{pool.stack.pool}/edit", button="Save")
    ui.fill("GPUs", value="2")
    ui.save()

    def starts_on(devices: int) -> bool:
        run = pool.command("sleep 600")
        held = eventually(lambda: held_by(pool, run), "it runs")
        pool.cancel(run)
        pool.until(run, "Cancelled")
        return len(held) == devices

    eventually(lambda: starts_on(2), "a run without job variables gets two devices")
    ui.open(f"/work-pools/work-pool/{pool.stack.pool}/edit", button="Save")
    ui.fill("GPUs", value="1")
    ui.save()
    eventually(lambda: starts_on(1), "and then one again")
