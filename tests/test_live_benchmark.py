"""The benchmark flow on a live pool: it restores the policy, and an edit by someone else wins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import eventually
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.config.benchmark_record import variable_name

pytestmark = pytest.mark.slow

BENCHMARK = "gpu_flows.deployments.benchmark:benchmark"


class BenchmarkPool(Pool):
    """A pool in which benchmarks can run. Their jobs are commands that end at once, or when told."""

    def start(self, **workload: object) -> str:
        """Start a benchmark with two rounds of one job each, and return its run."""
        flow_id = self.post("/flows/", {"name": "benchmark"})["id"]
        deployment = self.post(
            "/deployments/",
            {
                "name": self.stack.pool,
                "flow_id": flow_id,
                "entrypoint": BENCHMARK,
                "work_pool_name": self.stack.pool,
                "job_variables": {"coordinator": True},
            },
        )["id"]
        jobs = {"jobs": 1, "arrival": "at once", "models": ["mlp"], "policies": ["round_robin", "sjf"]}
        body = {
            "parameters": {"workload": {**jobs, **workload}, "train": f"train/{self.stack.pool}"},
            "job_variables": {"coordinator": True},
        }
        return str(self.post(f"/deployments/{deployment}/create_flow_run", body)["id"])

    def policy(self) -> str:
        return str(self.status().policy["name"])

    def has_record(self) -> bool:
        """Whether the variable of a running benchmark exists."""
        found = self.post("/variables/filter", {})
        return variable_name(self.stack.pool) in [variable["name"] for variable in found]


@pytest.fixture
def pool(new_stack: Callable[..., Stack]) -> BenchmarkPool:
    stack = new_stack("1x2:GTX 1080 Ti:11")
    pool = BenchmarkPool(stack, flow="train")
    pool.use_policy("fifo", protection={"min_run_seconds": 7}, skip=True)
    return pool


def test_policy_is_restored_as_it_was(pool: BenchmarkPool) -> None:
    before = pool.block("gpu-scheduler")["data"]
    run = pool.start(seconds=[1.0])
    eventually(lambda: pool.policy() == "round_robin", "the first round")
    assert pool.has_record()
    pool.until(run, "Completed")
    assert pool.block("gpu-scheduler")["data"] == before
    assert not pool.has_record()
    rounds = "select policy, jobs, disturbed from experiment_summary order by policy"
    pool.until_recorded(rounds, ("round_robin", 1, None), ("sjf", 1, None))


def test_edit_by_someone_else_stays_and_marks_the_figures(pool: BenchmarkPool) -> None:
    run = pool.start(seconds=[120.0])
    eventually(lambda: pool.policy() == "round_robin", "the first round")
    eventually(lambda: len(pool.status().running) == 2, "the benchmark and its job run")
    pool.save_policy("srtf")
    ended = pool.until(run, "Disturbed", "Completed", "Failed")
    assert ended["state"]["name"] == "Disturbed"
    assert "The edit stays in force" in ended["state"]["message"]
    eventually(lambda: pool.policy() == "srtf", "the policy of the edit")
    assert not pool.has_record()
    assert pool.sql("select disturbed <> '' from experiments") == [(True,)]


def test_policy_is_restored_after_a_benchmark_that_was_killed(pool: BenchmarkPool) -> None:
    before = pool.block("gpu-scheduler")["data"]
    run = pool.start(seconds=[120.0])
    eventually(lambda: pool.policy() == "round_robin", "the first round")
    pool.stack.stop_jobs()
    pool.until(run, "Crashed")
    assert pool.policy() == "round_robin"
    pool.stack.set_up(blocks=pool.stack.pool)  # what the next `gpu-flows up` does
    assert pool.stack.restored_policy == "fifo"
    assert pool.block("gpu-scheduler")["data"] == before
    assert not pool.has_record()
