"""How runs end on a real server: without a worker that watches, and by a person who suspends them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import eventually
from live import Pool, wait_for_file

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow


def test_commands_that_ended_without_a_worker_keep_their_result(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    stack = new_stack("1x4:GTX 1080 Ti:11")
    pool = Pool(stack)
    wait = wait_for_file(tmp_path / "go")
    shells = {"Completed": wait, "Failed": f"{wait}; exit 3", "Crashed": f"{wait}; kill -9 $$"}
    removes = f'rm -rf "$GPU_FLOWS_ATTEMPT_FOLDER"; {wait}'
    runs = {pool.command(f"sh -c '{line}'", gpus=1): state for state, line in shells.items()}
    runs[pool.command(f"sh -c '{removes}'", gpus=1)] = "Completed"
    for run in runs:
        pool.until(run, "Running")
    stack.stop_worker()
    (tmp_path / "go").touch()
    for run in runs:
        eventually(lambda run=run: not pool.processes(run), "it ends while no worker watches")
    stack.start_worker()
    ends = {run: pool.until(run, "Completed", "Failed", "Crashed")["state"] for run in runs}
    assert {run: state["name"] for run, state in ends.items()} == runs
    messages = " ".join(state["message"] for state in ends.values())
    assert "exit code 3" in messages
    assert "signal 9" in messages
    query = "select exit_code, count(*) from attempt_ends group by 1 order by 1"
    pool.until_recorded(query, (-9, 1), (0, 2), (3, 1))


COUNTING = """
trap 'echo stopped >> {file}; exit 85' TERM
echo started >> {file}
test "$(grep -c started {file})" = 2 && exit 0
while :; do sleep 0.1; done
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["flow", "command"])
def test_suspend_frees_the_devices_and_resume_continues(
    new_stack: Callable[..., Stack], tmp_path: Path, kind: str
) -> None:
    pool = Pool(new_stack("1x4:GTX 1080 Ti:11"))
    file, script = tmp_path / "attempts", tmp_path / "job.sh"
    script.write_text(COUNTING.format(file=file))
    submit = pool.submit if kind == "flow" else pool.command
    run = submit(f"sh {script}", gpus=4)
    pool.until(run, "Running")
    eventually(lambda: file.exists() and file.read_text() == "started\n", "it runs")
    pool.suspend(run)
    eventually(lambda: file.read_text() == "started\nstopped\n", "it saves and stops")
    pool.until(pool.submit("true", gpus=4), "Completed")
    assert pool.state(run) == "Suspended"
    pool.resume(run)
    pool.until(run, "Completed")
    assert "Crashed" not in pool.states(run)
    outcomes = f"select outcome from attempt_ends where job_id = '{run}' order by attempt"
    pool.until_recorded(outcomes, ("suspended",), ("completed",))
