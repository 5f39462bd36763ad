"""Shadows on a real server with a real worker: they are compared, promoted, and judged by the regret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line.user import User
from conftest import eventually
from live import Pool, wait_for_file

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.worker.pool_tables import key_of

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_shadows_are_compared_promoted_and_judged(new_stack: Callable[..., Stack], tmp_path: Path) -> None:
    stack = new_stack("1x1:GTX 1080 Ti:11")
    user, pool = User(stack, tmp_path), Pool(stack)
    for name in ("sjf", "srtf"):
        added = user.run("policy", "shadow", "add", name, "--json").json
        assert (added["in_force"], added["errors"]) == (True, {})
    pool.save_block(
        "gpu-scheduler", {**pool.block("gpu-scheduler")["data"], "shadows": ["sjf", "srtf", "gone"]}
    )

    # FIFO is in force: the long job starts before the short ones, which both shadows would start first.
    first = pool.command(f"sh -c '{wait_for_file(tmp_path / 'all-wait')}'", expected_seconds=5)
    pool.until(first, "Running")
    runs = [pool.command(f"sleep {s}", expected_seconds=30 * s) for s in (1.5, 0.5, 1)]
    eventually(lambda: len(pool.status().waiting) == 3, "all wait")
    better = "select count(*) from shadow_ranking where turnaround_percent < 0"
    pool.until_recorded(better, (2,))  # shortest first is better for these jobs
    (tmp_path / "all-wait").touch()
    for run in [first, *runs]:
        pool.until(run, "Completed")
    started = "select job_id from attempts order by started"
    pool.until_recorded(started, *((run,) for run in [first, *runs]))

    disagreed = (
        "select distinct shadow from shadow_decisions where policy = 'fifo' and not same_jobs order by 1"
    )
    pool.until_recorded(disagreed, ("sjf",), ("srtf",))
    shown = _shown(user)
    assert shown["gone"]["error"].startswith("There is no policy 'gone'")
    for name in ("sjf", "srtf"):
        figures = shown[name]
        assert figures["beside"] == "fifo"
        assert figures["error"] == ""
        assert 0 <= figures["agreement_percent"] < 100
        assert figures["turnaround_percent"] < 0
        assert figures["avg_us"] > 0
    judged = Pool(stack, flow="regret")
    run = judged.submit(parameters={"policies": ["fifo"], "notify_percent": 0.0}, coordinator=True)
    ended = judged.until(run, "Completed", "Failed", "Crashed")
    assert ended["state"]["name"] == "Completed", judged.logs(run)
    (regret,) = eventually(
        lambda: pool.sql("select policy, best, regret_percent, jobs from regrets"), "a row"
    )
    assert regret[0].startswith("fifo")
    assert regret[1] in ("sjf", "srtf")
    assert regret[2] > 0
    assert regret[3] == 4
    report = _artifact(pool, key_of("regret", stack.pool))
    assert "replayed under each policy" in report
    assert "| sjf |" in report
    assert "| gone |" not in report
    event = eventually(lambda: _event(pool), "the event of the regret")
    assert event["payload"]["best"] == regret[1]
    assert event["resource"]["prefect.resource.id"] == f"gpu-flows.pool.{stack.pool}"

    promoted = user.run("policy", "promote", "sjf", "--json").json
    assert promoted["in_force"]
    assert promoted["shadows"] == ["fifo", "srtf", "gone"]
    assert pool.status().policy["name"] == "sjf"
    assert _shown(user)["fifo"]["beside"] == "sjf"


def _shown(user: User) -> dict[str, dict[str, Any]]:
    """The shadows of `policy show` by name."""
    return {each["shadow"]: each for each in user.run("policy", "show", "--json").json["shadows"]}


def _artifact(pool: Pool, key: str) -> str:
    return str(pool.request("GET", f"/artifacts/{key}/latest")["data"])


def _event(pool: Pool) -> Any:
    resources = {"id": [f"gpu-flows.pool.{pool.stack.pool}"]}
    body = {"filter": {"event": {"name": ["gpu-flows.policy.regret"]}, "resource": resources}}
    found = pool.post("/events/filter", body)["events"]
    return found[0] if found else None
