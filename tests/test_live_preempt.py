"""Preemption on a real server with a real worker: jobs are preempted for an urgent job and complete later."""

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
from live import DOUBLE_ALLOCATIONS, Pool, wait_for_file

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

# Counts to 20, but beyond 10 only when a file is there, and saves the count when it is asked to stop.
COUNTS = (
    'n=$(cat "$GPU_FLOWS_CHECKPOINT_DIR/n" 2>/dev/null || echo 0); '
    "trap 'echo $n > \"$GPU_FLOWS_CHECKPOINT_DIR/n\"; exit 85' TERM; "
    "while [ $n -lt 20 ]; do "
    "if [ $n -lt 10 -o -e {go} ]; then n=$((n+1)); echo $GPU_FLOWS_ATTEMPT $n >> {counted}; fi; "
    "sleep 0.2 & wait $!; done"
)


def states_since_start(pool: Pool, run: str) -> list[str]:
    """The run's states, without repetitions and without those before it first got devices."""
    names = [name for name in pool.states(run) if name not in ("Scheduled", "AwaitingGPU", "Late")]
    return [name for name, _ in groupby(names)]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_an_urgent_job_preempts_two_and_all_complete(new_stack: Callable[..., Stack], tmp_path: Path) -> None:
    pool = Pool(new_stack("1x4:GTX 1080 Ti:11"))
    pool.use_policy("priority", protection={"min_run_seconds": 0})
    counted = tmp_path / "counted"
    counts = COUNTS.format(go=tmp_path / "go", counted=counted)
    first = pool.submit(counts, gpus=2, grace_seconds=10)  # as a flow
    second = pool.command(f"sh -c {quote(counts)}", gpus=2)  # as a bare command
    eventually(lambda: {line.split(".")[0] for line in lines(counted)} == {first, second}, "both jobs count")

    urgent = pool.submit(wait_for_file(tmp_path / "go"), gpus=4, priority_class="urgent")
    name = pool.run(urgent)["name"]
    for run in (first, second):
        waiting = pool.until(run, "Preempted")["state"]
        assert waiting["type"] == "SCHEDULED"
        assert f"Preempted for {name} by policy 'priority'" in waiting["message"]
        assert pool.run(run)["infrastructure_pid"] is None
    eventually(
        lambda: "in the queue" in pool.run(first)["state"]["message"],
        "the message also states what it waits for",
    )
    assert pool.state(first) == "Preempted"
    (tmp_path / "go").touch()
    for run in (urgent, first, second):
        state = pool.until(run, "Completed", "Failed", "Crashed")["state"]
        assert state["name"] == "Completed", state
    expected = ["Pending", "Running", "Preempted", "Pending", "Running", "Completed"]
    assert states_since_start(pool, first) == expected
    assert pool.run(first)["run_count"] == 1, "a preemption is not a retry"
    for run in (first, second):
        mine = [line.split() for line in lines(counted) if line.startswith(run)]
        assert {attempt for attempt, _ in mine} == {f"{run}.1", f"{run}.2"}
        assert [int(n) for _, n in mine] == list(range(1, 21)), "each step ran once"

    count = "select count(*) from job_ends where outcome = 'completed'"
    pool.until_recorded(count, (3,))
    attempts = pool.sql("select job_id, attempt, outcome from attempt_history order by job_id, attempt")
    assert sorted(attempts) == sorted(
        [(urgent, 1, "completed")]
        + [(run, n, how) for run in (first, second) for n, how in ((1, "preempted"), (2, "completed"))]
    )
    assert pool.sql(DOUBLE_ALLOCATIONS) == [(0,)]
    assert pool.sql("select job_id, lost_s from saved_work where lost_s > 0") == []
    assert pool.sql("select distinct kind, freed_for from interruptions") == [("preempted", f'["{urgent}"]')]


@pytest.mark.long
def test_cancelled_while_preempted_and_a_worker_killed_during_a_preemption(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    stack = new_stack("1x2:GTX 1080 Ti:11")
    pool = Pool(stack)
    pool.use_policy("priority", protection={"min_run_seconds": 0})
    asked = tmp_path / "asked"
    script = f"trap 'touch {asked}; sleep 6; exit 85' TERM; while true; do sleep 0.5 & wait $!; done"
    slow_job = pool.submit(script, gpus=1, grace_seconds=20)
    quick = pool.submit("trap 'exit 85' TERM; while true; do sleep 0.5 & wait $!; done", gpus=1)
    for run in (slow_job, quick):
        eventually(lambda run=run: len(pool.processes(run)) >= 2, "it runs")
    urgent = pool.submit(wait_for_file(tmp_path / "first"), gpus=2, priority_class="urgent")
    eventually(asked.exists, "the job was asked to stop")
    stack.stop_worker(signal.SIGKILL)
    pool.cancel(quick)
    stack.start_worker()
    pool.until(slow_job, "Preempted")
    pool.until(quick, "Cancelled")
    (tmp_path / "first").touch()
    pool.until(urgent, "Completed")
    pool.until(slow_job, "Running")
    assert "Crashed" not in pool.states(slow_job)
    again = pool.submit(wait_for_file(tmp_path / "again"), gpus=2, priority_class="urgent")
    pool.until(slow_job, "Preempted")
    gpu_flows = [sys.executable, "-m", "gpu_flows.cli"]

    def outcomes() -> list[str]:
        shown = json.loads(stack.run([*gpu_flows, "why", slow_job, "--json"]))
        return [attempt["outcome"] for attempt in shown["attempts"]]

    eventually(lambda: outcomes() == ["preempted", "preempted"], "`why` shows both attempts")
    (shown,) = json.loads(stack.run([*gpu_flows, "cancel", slow_job, "--json"]))
    assert shown["state"] == "Cancelled", "there is no process to stop"
    (tmp_path / "again").touch()
    pool.until(again, "Completed")
    eventually(lambda: not pool.status().waiting and not any(pool.holders().values()), "no job waits or runs")
    assert pool.sql(DOUBLE_ALLOCATIONS) == [(0,)]


def test_a_preemption_costs_no_retry(new_stack: Callable[..., Stack], tmp_path: Path) -> None:
    """The job fails in its first try, is preempted in its second, fails again, and completes in its third."""
    pool = Pool(new_stack("1x1:GTX 1080 Ti:11"))
    pool.use_policy("priority", protection={"min_run_seconds": 0})
    tries = tmp_path / "tries"
    line = (
        f"echo $GPU_FLOWS_ATTEMPT >> {tries}; "
        f"case $(wc -l < {tries}) in 1|3) exit 1;; 2) trap 'exit 85' TERM; sleep 600 & wait $!;; esac"
    )
    run = pool.submit(line, retries=2, grace_seconds=10)
    eventually(lambda: len(lines(tries)) == 2, "the second try runs")
    pool.until(pool.submit("true", priority_class="urgent"), "Completed")
    state = pool.until(run, "Completed", "Failed", "Crashed")["state"]
    assert state["name"] == "Completed", pool.states(run)
    assert lines(tries) == [f"{run}.1", f"{run}.1", f"{run}.2", f"{run}.2"]
    assert pool.run(run)["run_count"] == 3


def test_an_elastic_job_shrinks_for_another_and_grows_again(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    pool = Pool(new_stack("1x4:GTX 1080 Ti:11"))
    pool.use_policy("srtf", elastic=True, protection={"min_run_seconds": 0})
    sizes = tmp_path / "sizes"
    line = f"echo $GPU_FLOWS_GPUS >> {sizes}; trap 'exit 85' TERM; sleep 600 & wait $!"
    size = {"gpus": 2, "min_gpus": 1, "max_gpus": 4, "expected_seconds": 1000}
    elastic = pool.command(f"sh -c {quote(line)}", **size)
    eventually(lambda: lines(sizes) == ["4"], "it runs on all devices")
    small = pool.command("sleep 2", gpus=2, expected_seconds=2)
    pool.until(small, "Completed")
    eventually(lambda: lines(sizes) == ["4", "2", "4"], "it shrinks, and grows again")
    pool.cancel(elastic)
    pool.until(elastic, "Cancelled")
    ended = "select outcome from attempt_history where outcome <> 'completed' order by started"
    pool.until_recorded(ended, ("resized",), ("resized",), ("cancelled",))
    assert pool.sql(DOUBLE_ALLOCATIONS) == [(0,)]
