"""`gpu-flows policy`: what it shows of a policy and its protection, and what it saves."""

from __future__ import annotations

from typing import Any

import pytest
from command_line.run import expect_error, gpu_flows
from command_line.server import FakeServer
from command_line.worker import write_status

from gpu_flows.blocks import GpuScheduler
from gpu_flows.schedulers.policy import make_policy, policies

pytest_plugins = ["command_line.fixtures"]

BLOCK = "/block_types/slug/gpu-scheduler/block_documents/name/default"
OPTIONS = make_policy("round_robin").options.model_dump(mode="json")


@pytest.fixture
def pool(fake: FakeServer) -> FakeServer:
    """A pool with round_robin in its block and in force."""
    fake.answers["/work_pools/gpu"] = 200, {"base_job_template": {}}
    fake.answers["/block_documents/7"] = 204, None
    save(fake, {"policy": "round_robin", "protection": {"min_run_seconds": 90, "most_preemptions": 3}})
    serve("round_robin", OPTIONS)
    return fake


def save(fake: FakeServer, data: dict[str, Any]) -> None:
    schema = {"fields": GpuScheduler.model_json_schema()}
    document = {"id": "7", "data": data, "block_schema": schema, "updated": "2026-01-01T00:00:00Z"}
    fake.answers[BLOCK] = 200, document


def serve(name: str, options: dict[str, Any]) -> None:
    saved = "2026-01-01T00:00:00+00:00"
    write_status(policy={"name": name, "options": options, "serving": name, "error": "", "saved": saved})


def show() -> str:
    return " ".join(gpu_flows("policy", "show").out.split())


def test_the_rule_the_options_and_the_protection_are_shown_once(pool: FakeServer) -> None:
    shown = show()
    assert policies()["round_robin"].rule() in shown
    assert shown.count("wait_for_turn=false") == 1
    assert "in block" not in shown
    assert "No job is preempted before it has run for 90 s, and not more than 3 times." in shown


def test_what_the_block_says_is_shown_if_it_is_not_in_force(pool: FakeServer) -> None:
    serve("fifo", make_policy("fifo").options.model_dump(mode="json"))
    shown = show()
    assert "in block round_robin" in shown
    assert "in force fifo" in shown
    assert policies()["fifo"].rule() in shown


def test_the_protection_can_be_set(pool: FakeServer) -> None:
    result = gpu_flows("policy", "set", "round_robin", "--protect", "2m")
    assert result.code == 0, result.err
    [saved] = [body["data"] for path, _, body in pool.requests if path == "/block_documents/7"]
    assert saved["protection"] == {"min_run_seconds": 120, "most_preemptions": 3}
    assert saved["policy"] == "round_robin"
    assert "is no duration" in gpu_flows("policy", "set", "fifo", "--protect", "long").err


def test_a_misspelled_option_is_explained_in_plain_words() -> None:
    error = " ".join(expect_error(gpu_flows("policy", "set", "round_robin", "-o", "wait_for_trun=1")).split())
    assert "wait_for_trun: there is no such name. Did you mean 'wait_for_turn'?" in error
