"""The policy of a running pool is swapped in Prefect's UIs, by the clicks that a person makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import eventually
from live import Pool
from prefect_ui.pages import Ui

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.schedulers.policy import make_policy, policies
from gpu_flows.schedulers.policy_choice import read_choice

pytest_plugins = ["prefect_ui.fixtures"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool(new_shared_stack: Callable[..., Stack]) -> Pool:
    return Pool(new_shared_stack("3x1:GTX 1080 Ti:11"))


@pytest.fixture(autouse=True)
def fifo_is_in_force(pool: Pool) -> None:
    pool.save_block("gpu-scheduler", {"policy": "fifo", "options": {}, "protection": {}})
    until_in_force(pool, "fifo")


def edit(ui: Ui, pool: Pool, slug: str = "gpu-scheduler") -> None:
    ui.open(f"/blocks/block/{pool.block(slug)['id']}/edit", button="Save")


def save_as_older_version(pool: Pool, data: dict[str, Any]) -> None:
    """Save the scheduler block with a schema of another version."""
    document = pool.block("gpu-scheduler")
    fields = {
        "title": "GpuScheduler",
        "type": "object",
        "block_type_slug": "gpu-scheduler",
        "block_schema_references": {},
        "properties": {"policy": {"title": "Policy", "type": "object"}},
    }
    schema = pool.post("/block_schemas/", {"fields": fields, "block_type_id": document["block_type_id"]})
    body = {"data": data, "merge_existing_data": False, "block_schema_id": schema["id"]}
    pool.request("PATCH", f"/block_documents/{document['id']}", json=body)


def until_in_force(pool: Pool, name: str, **options: Any) -> None:
    def in_force() -> bool:
        policy = pool.status().policy
        return policy["name"] == policy["serving"] == name and not policy["error"]

    eventually(in_force, f"{name} is in force")
    expected = make_policy(name, options).options.model_dump(mode="json")
    eventually(lambda: pool.status().policy["options"] == expected, f"{name} has {options}")


@pytest.mark.long
def test_every_policy_can_be_chosen(ui: Ui, pool: Pool) -> None:
    before = "fifo"
    for name, policy in policies().items():
        edit(ui, pool)
        assert ui.chosen("Policy") == before, "the form shows what was saved"
        ui.shows(policy.rule())
        ui.choose("Policy", option=name)
        ui.save()
        assert read_choice(pool.block("gpu-scheduler")["data"])[0] == name
        until_in_force(pool, name)
        before = name


def test_options_are_saved_with_the_policy_and_kept_for_it(ui: Ui, pool: Pool) -> None:
    running = pool.command("sleep 600")
    pool.until(running, "Running")
    edit(ui, pool)
    ui.save()
    until_in_force(pool, "fifo")  # saved unchanged

    edit(ui, pool)
    ui.choose("Policy", option="round_robin")
    ui.switch("round_robin", "Wait for the node whose turn it is")
    ui.fill("Protection", "Least run time (seconds)", value="5")
    ui.save()
    until_in_force(pool, "round_robin", wait_for_turn=True)

    edit(ui, pool)
    ui.choose("Policy", option="fifo")
    ui.switch("fifo", "Skip what does not fit")
    ui.save()
    until_in_force(pool, "fifo", skip=True)

    edit(ui, pool)
    ui.choose("Policy", option="round_robin")
    ui.save()
    until_in_force(pool, "round_robin", wait_for_turn=True)
    assert pool.block("gpu-scheduler")["data"]["protection"]["min_run_seconds"] == 5
    assert pool.state(running) == "Running", "no swap touched it"
    pool.cancel(running)


def test_prediction_is_switched_off_and_on(ui: Ui, pool: Pool) -> None:
    def predicted_of_a_new_run() -> list[tuple[str]]:
        run = pool.command("sleep 0.5")
        pool.until(run, "Completed")
        # What an ended run teaches is learned before its end is recorded.
        query = f"select predicted from job_features join job_ends using (job_id) where job_id = '{run}'"
        return eventually(lambda: pool.sql(query), "its features and its end are recorded")

    is_predicted, is_not = [('["expected_s"]',)], [("[]",)]
    predicted_of_a_new_run()  # from now on there is a like one
    assert predicted_of_a_new_run() == is_predicted
    for is_on, expected in ((False, is_not), (True, is_predicted)):
        edit(ui, pool)
        ui.switch("Prediction", "Predict memory and time")
        ui.save()
        saved = pool.block("gpu-scheduler")["data"].get("prediction") or {}
        assert saved.get("enabled", True) == is_on
        eventually(lambda expected=expected: predicted_of_a_new_run() == expected, f"it is on: {is_on}")


def test_nonsense_is_refused_in_the_form(ui: Ui, pool: Pool) -> None:
    edit(ui, pool)
    ui.choose("Policy", option="fifo")
    ui.fill("fifo", "Utilization threshold (%)", value="900")
    ui.save_is_refused("fifo", "Utilization threshold (%)")
    assert read_choice(pool.block("gpu-scheduler")["data"]) == ("fifo", {})
    assert pool.status().policy["options"]["utilization_threshold"] == 90
    assert pool.status().policy["name"] == "fifo"


def test_a_block_that_an_older_version_saved_is_shown_in_the_new_form(ui: Ui, pool: Pool) -> None:
    pool.stack.stop_worker()
    save_as_older_version(pool, {"policy": {"name": "round_robin", "wait_for_turn": True}, "protection": {}})
    pool.stack.start_worker()
    until_in_force(pool, "round_robin", wait_for_turn=True)
    edit(ui, pool)
    assert ui.chosen("Policy") == "round_robin"
    ui.save()
    until_in_force(pool, "round_robin", wait_for_turn=True)


def test_shadows_are_chosen_dropped_and_promoted_by_clicks(ui: Ui, pool: Pool) -> None:
    def save_and_read() -> list[str]:
        ui.save()
        return pool.block("gpu-scheduler")["data"].get("shadows") or []

    edit(ui, pool)
    ui.toggle("Shadows", options=["sjf", "srtf"])
    assert save_and_read() == ["sjf", "srtf"]
    until_in_force(pool, "fifo")
    edit(ui, pool)
    ui.shows("srtf")
    ui.toggle("Shadows", options=["sjf"])
    assert save_and_read() == ["srtf"]
    edit(ui, pool)
    ui.choose("Policy", option="srtf")
    ui.toggle("Shadows", options=["srtf", "fifo"])
    assert save_and_read() == ["fifo"]
    until_in_force(pool, "srtf")
    edit(ui, pool)
    ui.toggle("Shadows", options=["fifo"])
    assert save_and_read() == []
