"""`policy show` and `queue` say that a benchmark changes the policy, or that one was killed."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from command_line.run import gpu_flows
from command_line.server import FakeServer
from command_line.worker import running_job, write_status

from gpu_flows.config.benchmark_record import BenchmarkRecord, parse_record, variable_name

pytest_plugins = ["command_line.fixtures"]

SAVED = "2026-01-01T00:00:00.123456+00:00"
RECORD = BenchmarkRecord("42", "lively-owl", "srtf", {"policy": "srtf"}, SAVED, "round_robin")


@pytest.fixture
def benchmark(fake: FakeServer) -> FakeServer:
    """A server on which a benchmark runs."""
    fake.answers["/work_pools/gpu"] = 200, {"base_job_template": {}}
    fake.answers["/variables/name/gpu_flows_benchmark_gpu"] = 200, {"value": asdict(RECORD)}
    fake.answers["/flow_runs/42"] = 200, {"state_type": "RUNNING"}
    show_block(fake, SAVED.replace("+00:00", "Z"))
    return fake


def show_block(fake: FakeServer, updated: str) -> None:
    path = "/block_types/slug/gpu-scheduler/block_documents/name/default"
    fake.answers[path] = 200, {"data": {"policy": {"name": "round_robin"}}, "updated": updated}


def test_policy_show_names_a_running_benchmark(benchmark: FakeServer) -> None:
    shown = gpu_flows("policy", "show").out
    assert "Benchmark 'lively-owl' tries policies, now round_robin; it restores srtf" in " ".join(
        shown.split()
    )


def test_policy_show_tells_how_to_restore_after_a_killed_benchmark(benchmark: FakeServer) -> None:
    benchmark.answers["/flow_runs/42"] = 200, {"state_type": "CRASHED"}
    assert "gpu-flows policy set srtf" in gpu_flows("policy", "show").out


def test_policy_that_was_set_after_a_killed_benchmark_needs_no_remark(benchmark: FakeServer) -> None:
    benchmark.answers["/flow_runs/42"] = 200, {"state_type": "CRASHED"}
    show_block(benchmark, "2026-01-02T00:00:00Z")
    assert gpu_flows("policy", "show", "--json").json["benchmark"] == ""


def test_policy_show_without_a_benchmark(benchmark: FakeServer) -> None:
    del benchmark.answers["/variables/name/gpu_flows_benchmark_gpu"]
    assert gpu_flows("policy", "show", "--json").json["benchmark"] == ""


def test_queue_names_a_running_benchmark(benchmark: FakeServer) -> None:
    write_status(running=[running_job(gpus=0, devices=[])])
    assert "Benchmark 'lively-owl'" in gpu_flows("queue").out


def test_queue_does_not_ask_the_server_while_no_benchmark_can_run(benchmark: FakeServer) -> None:
    write_status(running=[running_job()])
    assert gpu_flows("queue", "--json").json["benchmark"] == ""
    assert [path for path, *_ in benchmark.requests if path.startswith("/variables")] == []


def test_variable_of_a_pool_has_a_name_that_prefect_accepts() -> None:
    assert variable_name("Lab 1/A") == "gpu_flows_benchmark_lab_1_a"
    assert parse_record({"unknown": 1}) is None
    assert parse_record("text") is None
