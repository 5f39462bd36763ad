"""Preemption on a real server with a real worker: one sees jobs yield to an urgent one and finish later."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from shlex import quote

import pytest
from conftest import eventually
from live import NO_DEVICE_TWICE, Pool

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

# Counts to a number, once each half second, and keeps where it is in a file: the contract in shell.
COUNTS = (
    'n=$(cat "$GPU_FLOWS_CHECKPOINT_DIR/n" 2>/dev/null || echo 0); '
    "trap 'echo $n > \"$GPU_FLOWS_CHECKPOINT_DIR/n\"; exit 85' TERM; "
    "while [ $n -lt {} ]; do n=$((n+1)); echo $GPU_FLOWS_ATTEMPT $n >> {}; sleep 0.5 & wait $!; done"
)


def passes(pool: Pool, run: str) -> list[str]:
    """The states that the run went through, but for those before it first had devices."""
    names = [name for name in pool.states(run) if name not in ("Scheduled", "AwaitingGPU", "Late")]
    return [name for name, _ in groupby(names)]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_an_urgent_job_preempts_two_and_all_complete(new_stack: Callable[..., Stack], tmp_path: Path) -> None:
    pool = Pool(new_stack("1x4:GTX 1080 Ti:11"))
    pool.save_policy("priority", protection={"min_run_seconds": 0})
    counted = tmp_path / "counted"
    first = pool.submit(COUNTS.format(20, counted), gpus=2, grace_seconds=10)  # as a flow
    second = pool.command(f"sh -c {quote(COUNTS.format(20, counted))}", gpus=2)  # as a bare command
    eventually(lambda: {line.split(".")[0] for line in lines(counted)} == {first, second}, "both count")

    urgent = pool.submit("sleep 1", gpus=4, priority_class="urgent")
    name = pool.run(urgent)["name"]
    for run in (first, second):
        waiting = pool.until(run, "Preempted")["state"]
        assert waiting["type"] == "SCHEDULED"
        assert f"Made room for {name}, by policy 'priority'" in waiting["message"]
        assert pool.run(run)["infrastructure_pid"] is None
    eventually(lambda: "in line" in pool.run(first)["state"]["message"], "it also says what it waits for")
    assert pool.state(first) == "Preempted"
    for run in (urgent, first, second):
        state = pool.until(run, "Completed", "Failed", "Crashed")["state"]
        assert state["name"] == "Completed", state
    way = ["Pending", "Running", "Preempted", "Pending", "Running", "Completed"]
    assert passes(pool, first) == way
    assert pool.run(first)["run_count"] == 1, "a preemption is not a retry"
    for run in (first, second):
        mine = [line.split() for line in lines(counted) if line.startswith(run)]
        assert {attempt for attempt, _ in mine} == {f"{run}.1", f"{run}.2"}
        assert [int(n) for _, n in mine] == list(range(1, 21)), "each step was done once"

    count = "select count(*) from job_ends where outcome = 'completed'"
    eventually(lambda: pool.sql(count) == [(3,)], "every end is recorded")
    attempts = pool.sql("select job_id, attempt, outcome from attempt_history order by job_id, attempt")
    assert sorted(attempts) == sorted(
        [(urgent, 1, "completed")]
        + [(run, n, how) for run in (first, second) for n, how in ((1, "preempted"), (2, "completed"))]
    )
    assert pool.sql(NO_DEVICE_TWICE) == [(0,)]
    assert pool.sql("select job_id, lost_s from saved_work where lost_s > 0") == []
    assert pool.sql("select distinct kind, freed_for from interruptions") == [("preempted", f'["{urgent}"]')]


def test_cancelled_while_preempted_and_a_worker_killed_while_a_job_leaves(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    stack = new_stack("1x2:GTX 1080 Ti:11")
    pool = Pool(stack)
    pool.save_policy("priority", protection={"min_run_seconds": 0})
    asked = tmp_path / "asked"
    slow = f"trap 'touch {asked}; sleep 6; exit 85' TERM; while true; do sleep 0.5 & wait $!; done"
    leaver = pool.submit(slow, gpus=1, grace_seconds=20)
    quick = pool.submit("trap 'exit 85' TERM; while true; do sleep 0.5 & wait $!; done", gpus=1)
    for run in (leaver, quick):
        eventually(lambda run=run: len(pool.processes(run)) >= 2, "it runs")
    urgent = pool.submit("sleep 2", gpus=2, priority_class="urgent")
    eventually(asked.exists, "it was asked to leave")
    stack.stop_worker(signal.SIGKILL)
    pool.cancel(quick)
    stack.start_worker()
    pool.until(leaver, "Preempted")
    pool.until(quick, "Cancelled")
    pool.until(urgent, "Completed")
    pool.until(leaver, "Running")
    assert "Crashed" not in pool.states(leaver)
    again = pool.submit("true", gpus=2, priority_class="urgent")
    pool.until(leaver, "Preempted")
    gpu_flows = [sys.executable, "-m", "gpu_flows.cli"]

    def outcomes() -> list[str]:
        told = json.loads(stack.run([*gpu_flows, "why", leaver, "--json"]))
        return [each["outcome"] for each in told["attempts"]]

    eventually(lambda: outcomes() == ["preempted", "preempted"], "`why` tells of both attempts")
    (told,) = json.loads(stack.run([*gpu_flows, "cancel", leaver, "--json"]))
    assert told["state"] == "Cancelled", "nothing of it is left to stop"
    pool.until(again, "Completed")
    eventually(lambda: not pool.status().waiting and not any(pool.holders().values()), "nothing is left")
    assert pool.sql(NO_DEVICE_TWICE) == [(0,)]


def test_a_job_that_fails_now_and_then_keeps_its_retries(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    """It fails in its first try, is preempted in its second, fails there, and completes in its third."""
    pool = Pool(new_stack("1x1:GTX 1080 Ti:11"))
    pool.save_policy("priority", protection={"min_run_seconds": 0})
    tries = tmp_path / "tries"
    line = (
        f"echo $GPU_FLOWS_ATTEMPT >> {tries}; "
        f"case $(wc -l < {tries}) in 1|3) exit 1;; 2) trap 'exit 85' TERM; sleep 600 & wait $!;; esac"
    )
    run = pool.submit(line, retries=2, grace_seconds=10)
    eventually(lambda: len(lines(tries)) == 2, "it is in its second try")
    pool.until(pool.submit("true", priority_class="urgent"), "Completed")
    state = pool.until(run, "Completed", "Failed", "Crashed")["state"]
    assert state["name"] == "Completed", pool.states(run)
    assert lines(tries) == [f"{run}.1", f"{run}.1", f"{run}.2", f"{run}.2"]
    assert pool.run(run)["run_count"] == 3


def test_an_elastic_job_shrinks_for_another_and_grows_again(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    pool = Pool(new_stack("1x4:GTX 1080 Ti:11"))
    pool.save_policy("srtf", elastic=True, protection={"min_run_seconds": 0})
    sizes = tmp_path / "sizes"
    line = f"echo $GPU_FLOWS_GPUS >> {sizes}; trap 'exit 85' TERM; sleep 600 & wait $!"
    ask = {"gpus": 2, "min_gpus": 1, "max_gpus": 4, "expected_seconds": 1000}
    elastic = pool.command(f"sh -c {quote(line)}", **ask)
    eventually(lambda: lines(sizes) == ["4"], "it has all there is")
    small = pool.command("sleep 2", gpus=2, expected_seconds=2)
    pool.until(small, "Completed")
    eventually(lambda: lines(sizes) == ["4", "2", "4"], "it made room, and grew again")
    pool.cancel(elastic)
    pool.until(elastic, "Cancelled")
    ended = "select outcome from attempt_history where outcome <> 'completed' order by started"
    eventually(lambda: pool.sql(ended) == [("resized",), ("resized",), ("cancelled",)], "all is recorded")
    assert pool.sql(NO_DEVICE_TWICE) == [(0,)]
