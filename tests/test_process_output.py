"""What bare commands print arrives in the logs of their runs, also if the worker is replaced meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from containers import CollectingSink
from fake_pool import happens

from gpu_flows.runtimes import output, process_output
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch
from gpu_flows.runtimes.output_buffer import LONGEST_LINE, OutputBuffer
from gpu_flows.runtimes.process import ProcessRuntime
from gpu_flows.runtimes.process_output import OutputFile, ProcessOutput
from gpu_flows.schedulers.model import Device, Job


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SEND_INTERVAL_S", 0.02)
    monkeypatch.setattr(process_output, "READ_INTERVAL_S", 0.02)


def make_launch(*command: str) -> Launch:
    job = Job(str(uuid4()))
    device = Device(f"SIM-{job.id}", "node-1", 0)
    return Launch(job, 1, "pool", "fifo", 0.0, (device,), command, handles_intents=False)


class Pool:
    """A runtime with its store and sink. `restart` replaces the worker."""

    def __init__(self, folder: Path) -> None:
        self.store, self.sink = AttemptStore(folder), CollectingSink()
        self.runtime = ProcessOutput(ProcessRuntime(self.store), self.store, self.sink)

    async def run(self, *launches: Launch) -> list[int | None]:
        attempts = [await self.runtime.launch(launch) for launch in launches]
        codes = [(await self.runtime.wait(attempt)).exit_code for attempt in attempts]
        for launch in launches:
            self.runtime.forget(launch)
        return codes

    async def wait_for_lines(self, launch: Launch, count: int) -> None:
        arrived = await happens(lambda: len(self.sink.texts(launch)) >= count)
        assert arrived, f"only {len(self.sink.texts(launch))} of {count} lines arrived"

    async def restart(self) -> None:
        await self.runtime.close()
        self.runtime = ProcessOutput(ProcessRuntime(self.store), self.store, self.sink)


def run(pool: Pool, work: Coroutine[Any, Any, Any]) -> Any:
    async def main() -> Any:
        try:
            return await work
        finally:
            await pool.runtime.close()

    return asyncio.run(main())


def test_the_output_has_arrived_when_the_command_has_ended(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    script = "for n in 1 2 3; do echo out $n; echo err $n >&2; done; printf 'no newline'; exit 3"
    launches = [make_launch("sh", "-c", script) for _ in range(3)]
    assert run(pool, pool.run(*launches)) == [3, 3, 3]
    expected = [f"{stream} {number}" for number in (1, 2, 3) for stream in ("out", "err")]
    for launch in launches:
        assert pool.sink.texts(launch) == [*expected, "no newline"]


def test_a_flow_logs_itself(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    launch = replace(make_launch("echo", "hello"), handles_intents=True)
    assert run(pool, pool.run(launch)) == [0]
    assert pool.sink.texts(launch) == []


COUNTING = "import time\nfor n in range(400): print('line', n, flush=True); time.sleep(0.005)"


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_replaced_worker_loses_and_repeats_no_line(tmp_path: Path, is_killed: bool) -> None:
    pool = Pool(tmp_path)
    launch = make_launch(sys.executable, "-c", COUNTING)

    async def main() -> None:
        await pool.runtime.launch(launch)
        for count in (20, 120, 220):
            await pool.wait_for_lines(launch, count)
            if is_killed:  # the last position was not written
                (pool.store.folder(launch) / "output.position").unlink(missing_ok=True)
            await pool.restart()
            (found,) = await pool.runtime.find()
            assert found.attempt
            attempt = found.attempt
        await pool.runtime.wait(attempt)

    run(pool, main())
    assert pool.sink.texts(launch) == [f"line {number}" for number in range(400)]


def test_the_output_of_a_command_that_ended_unwatched_is_sent(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    launch = make_launch("sh", "-c", "sleep 0.3; echo late")

    async def main() -> None:
        await pool.runtime.launch(launch)
        await pool.restart()
        await asyncio.sleep(0.6)
        (found,) = await pool.runtime.find()
        assert found.attempt
        await pool.runtime.wait(found.attempt)

    run(pool, main())
    assert pool.sink.texts(launch) == ["late"]


def test_a_flood_is_cut_and_says_so(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    launch = make_launch(sys.executable, "-c", "for n in range(300_000): print(f'{n:090}')")
    assert run(pool, pool.run(launch)) == [0]
    arrived = pool.sink.texts(launch)
    assert len(arrived) < 290_000
    assert int(arrived[-1]) == 299_999
    notes = [line.text for line in pool.sink.lines if line.from_worker]
    assert notes
    assert all("came too fast and are not shown" in note and "output.log has them" in note for note in notes)


def test_long_lines_are_cut_and_progress_bars_show_their_last_state(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"x" * (LONGEST_LINE + 5) + b"\n10%\r50%\r100%\nbroken \xff\nrest")
    buffer = OutputBuffer(make_launch("true"), tmp_path, tail_only=False)
    OutputFile(path, buffer).read_to_end()
    texts = [line.text for line in buffer.next_batch(10, 1_000_000)]
    assert texts == ["x" * LONGEST_LINE, "xxxxx", "100%", "broken \N{REPLACEMENT CHARACTER}", "rest"]


@pytest.mark.parametrize("trick", ["link", "fifo", "folder", "nothing"])
def test_only_a_regular_file_is_read(tmp_path: Path, trick: str) -> None:
    path, secret = tmp_path / "output.log", tmp_path / "secret"
    secret.write_text("secret\n")
    if trick == "link":
        path.symlink_to(secret)
    elif trick == "fifo":
        os.mkfifo(path)
    elif trick == "folder":
        path.mkdir()
    buffer = OutputBuffer(make_launch("true"), tmp_path, tail_only=False)
    OutputFile(path, buffer).read_to_end()
    assert buffer.is_empty
