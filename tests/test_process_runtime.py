"""The process runtime: where a job starts, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from conftest import eventually

from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Attempt, End, Launch
from gpu_flows.runtimes.process import WORK, ProcessRuntime
from gpu_flows.schedulers.model import Device, Job


def make_launch(job_id: str, script: str, directory: str = "") -> Launch:
    device = Device(f"SIM-{job_id}", "node-1", 0)
    command = ("sh", "-c", script)
    return Launch(
        Job(job_id), 1, "pool", "fifo", 0.0, (device,), command, directory=directory, handles_intents=False
    )


async def run_all(runtime: ProcessRuntime, *launches: Launch) -> list[End]:
    attempts: list[Attempt] = [await runtime.launch(launch) for launch in launches]
    return [await runtime.wait(attempt) for attempt in attempts]


def test_each_attempt_starts_in_an_empty_directory_of_its_own(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    runtime = ProcessRuntime(store)
    out = tmp_path / "out"
    # Each script fails unless its directory is empty, and leaves a file in it, as a clone would.
    script = f'test -z "$(ls -A)" && touch clone && pwd >> {out}'
    launches = [make_launch(name, script) for name in ("a", "b")]
    ends = asyncio.run(run_all(runtime, *launches))
    assert [end.exit_code for end in ends] == [0, 0]
    assert sorted(out.read_text().split()) == [str(store.folder(launch) / WORK) for launch in launches]

    for launch in launches:
        runtime.forget(launch)
        ended = store.ended / launch.id
        eventually(lambda ended=ended: not (ended / WORK).exists(), "the directory is removed")
        assert (ended / "output.log").exists(), "the output is kept"


def test_a_named_directory_is_used_and_never_removed(tmp_path: Path) -> None:
    runtime = ProcessRuntime(AttemptStore(tmp_path / "pool"))
    own = tmp_path / "own"
    own.mkdir()
    launch = make_launch("a", "touch result", str(own))
    [end] = asyncio.run(run_all(runtime, launch))
    runtime.forget(launch)
    assert end.exit_code == 0
    assert (own / "result").exists()
