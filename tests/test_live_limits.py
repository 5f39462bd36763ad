"""Limits, pauses, holds, dependencies and logs on a real server: when they apply, and what users see."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from live import Pool, wait_for_file

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.prefect_api.run_edits import build_edit_event

pytestmark = pytest.mark.slow


def codes(pool: Pool) -> dict[str, str]:
    return {job["id"]: job["reason"] for job in pool.status().waiting}


def edit(pool: Pool, run: str, **variables: Any) -> None:
    """Change job variables of a waiting run, as `gpu-flows release` does."""
    known = pool.run(run)["job_variables"]
    pool.request("PATCH", f"/flow_runs/{run}", json={"job_variables": {**known, **variables}})
    pool_id = pool.request("GET", f"/work_pools/{pool.stack.pool}")["id"]
    pool.post("/events", [build_edit_event(run, pool_id)])


def started(pool: Pool, runs: list[str]) -> dict[str, datetime]:
    found = (pool.run(run) for run in runs)
    return {run["id"]: datetime.fromisoformat(run["start_time"]) for run in found if run["start_time"]}


def test_limits_and_pauses_apply_from_the_moment_they_are_set(new_stack: Callable[..., Stack]) -> None:
    """The worker does not poll in this test: only events and the check before each start can help."""
    stack = new_stack("1x4:GTX 1080 Ti:11", worker=False)
    pool, where = Pool(stack), f"/work_pools/{stack.pool}"
    queue = pool.post(f"{where}/queues", {"name": "narrow"})
    stack.start_worker(PREFECT_WORKER_QUERY_SECONDS="600")
    first = pool.command("sleep 600", grace_seconds=0)
    pool.until(first, "Running")

    pool.request("PATCH", where, json={"concurrency_limit": 2})
    runs = [pool.command("sleep 600", grace_seconds=0) for _ in range(3)]
    pool.until(runs[0], "Running")
    waiting = dict.fromkeys(runs[1:], "pool_limit")
    eventually(lambda: codes(pool) == waiting, "the others wait because of the limit")
    assert set(started(pool, runs)) == {runs[0]}
    note = eventually(
        lambda: "at most 2 jobs" in (text := str(pool.run(runs[1])["state"]["message"])) and text, "a note"
    )
    assert f"set-concurrency-limit {stack.pool}" in note
    eventually(lambda: "Waiting: Work pool" in pool.logs(runs[1]), "the log says it as well")

    pool.request("PATCH", where, json={"concurrency_limit": None, "is_paused": True})
    eventually(lambda: set(codes(pool).values()) == {"paused"}, "the pause replaces the limit")
    pool.request("PATCH", f"{where}/queues/{queue['name']}", json={"concurrency_limit": 0})
    body = {
        "parameters": {"command": "unused"},
        "job_variables": {"command": "true"},
        "work_queue_name": "narrow",
    }
    narrow = str(pool.post(f"/deployments/{pool.deployment}/create_flow_run", body)["id"])
    pool.request("PATCH", where, json={"is_paused": False})
    for run in runs[1:]:
        pool.until(run, "Running")
    eventually(lambda: codes(pool) == {narrow: "queue_limit"}, "the limit of the work queue holds one back")
    pool.cancel(first)
    pool.request("PATCH", f"{where}/queues/{queue['name']}", json={"concurrency_limit": None})
    pool.until(narrow, "Completed")
    for run in runs:
        pool.cancel(run)


def test_holds_dependencies_and_priorities(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack("1x1:GTX 1080 Ti:11", worker=False)
    pool = Pool(stack)
    stack.start_worker(PREFECT_WORKER_QUERY_SECONDS="600")
    held = pool.command("sleep 1", hold=True)
    then = pool.command("true", after=[held])
    never = pool.command("true", after=[then, "00000000-0000-0000-0000-000000000000"])
    refused = pool.until(never, "Refused")
    assert "does not exist" in refused["state"]["message"]
    eventually(lambda: "Refused: " in pool.logs(never), "the refusal is in the log")
    eventually(lambda: codes(pool) == {held: "held", then: "dependency"}, "both wait")
    edit(pool, held, hold=False)
    pool.until(held, "Completed")
    pool.until(then, "Completed")
    pool.until_recorded(f"select outcome from job_history where job_id = '{never}'", ("refused",))

    blocker = pool.command("sleep 600", grace_seconds=0)
    pool.until(blocker, "Running")
    early, late = pool.command("true"), pool.command("true")
    cancelled = pool.command("true", hold=True)
    eventually(lambda: list(codes(pool)) == [early, late, cancelled], "three wait")
    pool.use_policy("priority")
    edit(pool, late, priority=5)
    eventually(lambda: list(codes(pool)) == [late, early, cancelled], "the later one comes first")
    pool.cancel(cancelled)
    pool.until_recorded(f"select outcome from job_ends where job_id = '{cancelled}'", ("cancelled",))
    pool.cancel(blocker)
    pool.until(early, "Completed")


SAVES_AND_STOPS = """
echo '{"event": "saved", "attempt": 1, "time": 1, "step": 624}' >> $GPU_FLOWS_CHECKPOINT_DIR/journal.jsonl
trap 'exit 85' TERM
while :; do sleep 0.1; done
"""


def test_the_log_and_the_tags_of_a_run_show_where_it_runs(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    pool = Pool(new_stack("1x2:GTX 1080 Ti:11"))
    pool.use_policy("priority", protection={"min_run_seconds": 0})
    script = tmp_path / "job.sh"
    script.write_text(SAVES_AND_STOPS)
    low = pool.command(f"sh {script}", gpus=2)
    assert ": GPU 0-1." in pool.until(low, "Running")["state"]["message"]
    eventually(lambda: ": GPU 0-1 (policy 'priority')." in pool.logs(low), "its log says where it starts")
    (tag,) = eventually(lambda: pool.run(low)["tags"], "its tags as well")
    assert tag.startswith("gpus:")
    assert tag.endswith(":0-1")

    high = pool.command(f"sh -c '{wait_for_file(tmp_path / 'go')}'", gpus=1, priority=10)
    pool.until(low, "Preempted")
    assert pool.run(low)["tags"] == []
    (tmp_path / "go").touch()
    pool.until(high, "Completed")
    pool.until(low, "Running")
    log = eventually(lambda: "Starting again" in (text := pool.logs(low)) and text, "it resumed")
    assert "Asked to save and stop. Preempted for " in log
    assert "attempt 2); it resumes from step 624." in log
    pool.cancel(low)
