"""The process runtime: where a job starts, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from conftest import eventually

from gpu_flows.runtimes import supervisor
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Attempt, End, Found, Launch, LaunchCancelled
from gpu_flows.runtimes.process import WORK, ProcessRuntime, supervise
from gpu_flows.schedulers.model import Device, Job


def make_launch(name: str, script: str, directory: str = "") -> Launch:
    """The ids of jobs are unique, as those of runs: processes are recognised, and killed, by them."""
    job, device = Job(str(uuid4()), name=name), Device(f"SIM-{name}", "node-1", 0)
    command = ("sh", "-c", script)
    return Launch(job, 1, "pool", "fifo", 0.0, (device,), command, directory=directory, handles_intents=False)


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
    assert set(out.read_text().split()) == {str(store.folder(launch) / WORK) for launch in launches}

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


def test_the_newest_output_is_read_once(tmp_path: Path) -> None:
    runtime = ProcessRuntime(AttemptStore(tmp_path))
    launch = make_launch("a", "printf 'one\\rtwo\\r'; echo three")
    asyncio.run(run_all(runtime, launch))
    assert runtime.read_output(launch) == ["one", "two", "three"]
    assert runtime.read_output(launch) == []
    runtime.forget(launch)
    assert runtime.read_output(launch) == []


# -- the supervisor ---------------------------------------------------------------------------


def test_the_next_worker_reads_the_exit_code_that_no_worker_saw(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    launches = [make_launch(str(code), f"exit {code}") for code in (0, 3)]
    launches.append(make_launch("killed", "kill -9 $$"))
    for launch in launches:
        asyncio.run(ProcessRuntime(store).launch(launch))  # a worker that dies at once
    for launch in launches:
        eventually(lambda launch=launch: (store.folder(launch) / "exit").exists(), "the exit code is stored")

    async def adopt() -> dict[str, tuple[bool, End]]:
        runtime = ProcessRuntime(store)
        found = await runtime.find()
        return {f.launch.job.name: (f.alive, await runtime.wait(f.attempt)) for f in found if f.attempt}

    ends = asyncio.run(adopt())
    assert {job: (alive, end.exit_code) for job, (alive, end) in ends.items()} == {
        "0": (False, 0),
        "3": (False, 3),
        "killed": (False, -9),
    }
    assert all(end.ended is not None for _, end in ends.values()), "it ended before the worker looked"


def daemon(seconds: str) -> str:
    """A shell line whose processes leave session, group and environment."""
    return f"(env -i setsid sh -c 'sleep {seconds} & exec sleep {seconds}' &) ; "


@pytest.fixture
def seconds() -> str:
    """A time to sleep that no other process of the machine sleeps."""
    return f"{300 + time.time_ns() % 10**9 / 10**9:.9f}"


def sleepers(seconds: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["cmdline"] == ["sleep", seconds] and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def test_nothing_survives_the_job(tmp_path: Path, seconds: str) -> None:
    runtime = ProcessRuntime(AttemptStore(tmp_path))
    script = daemon(seconds) + "sleep 0.3; exit 4"
    [end] = asyncio.run(run_all(runtime, make_launch("a", script)))
    assert end.exit_code == 4
    eventually(lambda: not sleepers(seconds), "nothing of it runs")


def test_nothing_survives_a_job_that_is_killed_after_its_grace_period(tmp_path: Path, seconds: str) -> None:
    async def stop() -> End:
        runtime = ProcessRuntime(AttemptStore(tmp_path))
        launch = make_launch("a", f"trap '' TERM; {daemon(seconds)}echo ready; sleep {seconds}")
        attempt = await runtime.launch(replace(launch, grace_s=0.2))
        output = tmp_path / "attempts" / launch.id / "output.log"
        while output.read_text() != "ready\n" or len(sleepers(seconds)) < 3:
            await asyncio.sleep(0.01)
        await runtime.stop(attempt, "cancel")
        return await runtime.wait(attempt)

    assert asyncio.run(stop()).exit_code == -9
    eventually(lambda: not sleepers(seconds), "nothing of it runs")


def test_a_job_dies_with_its_supervisor(tmp_path: Path, seconds: str) -> None:
    async def kill_supervisor() -> End:
        runtime = ProcessRuntime(AttemptStore(tmp_path))
        attempt = await runtime.launch(make_launch("a", f"sleep {seconds} & echo ready; sleep {seconds}"))
        while len(sleepers(seconds)) < 2:
            await asyncio.sleep(0.01)
        os.kill(int(attempt.identifier.partition(":")[2]), signal.SIGKILL)
        return await runtime.wait(attempt)

    assert asyncio.run(kill_supervisor()).exit_code == -9
    eventually(lambda: not sleepers(seconds), "nothing of it runs")


@pytest.mark.parametrize("handles_intents", [True, False])
def test_a_job_gets_each_signal_once(tmp_path: Path, handles_intents: bool) -> None:
    """SIGUSR1 reaches the job's own process, SIGTERM its whole group."""
    name = "USR1" if handles_intents else "TERM"
    child = f"trap 'echo child >> {tmp_path}/signals; exit' {name}; echo up; while :; do sleep 0.05; done"
    script = f"""
        trap 'echo job >> {tmp_path}/signals; stop=1' {name}
        sh -c "{child}" &
        echo up
        while [ -z "$stop" ]; do sleep 0.05; done
        sleep 0.3
    """

    async def stop() -> End:
        runtime = ProcessRuntime(AttemptStore(tmp_path))
        launch = replace(make_launch("a", script), handles_intents=handles_intents)
        attempt = await runtime.launch(launch)
        output = tmp_path / "attempts" / launch.id / "output.log"
        while output.read_text() != "up\nup\n":
            await asyncio.sleep(0.01)
        await runtime.stop(attempt, "reschedule")
        return await runtime.wait(attempt)

    assert asyncio.run(stop()).exit_code == 0
    received = sorted((tmp_path / "signals").read_text().split())
    assert received == (["job"] if handles_intents else ["child", "job"])


def test_a_job_that_removes_its_attempt_folder_is_still_found(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    launch = make_launch("a", 'rm -rf "$GPU_FLOWS_ATTEMPT_FOLDER"; exit 5')
    asyncio.run(ProcessRuntime(store).launch(launch))
    eventually(lambda: (store.folder(launch) / "exit").exists(), "the folder is restored")

    async def adopt() -> End:
        runtime = ProcessRuntime(store)
        [found] = await runtime.find()
        assert found.attempt
        assert found.launch.job == launch.job
        return await runtime.wait(found.attempt)

    assert asyncio.run(adopt()).exit_code == 5


def test_a_running_job_without_its_folder_is_found_while_it_runs(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    removed = tmp_path / "removed"
    launch = make_launch("a", f'rm -rf "$GPU_FLOWS_ATTEMPT_FOLDER"; touch {removed}; sleep 300')
    asyncio.run(ProcessRuntime(store).launch(launch))
    eventually(removed.exists, "the folder is removed")
    eventually((store.folder(launch) / "alive").exists, "the folder is restored")

    async def adopt() -> tuple[bool, End]:
        runtime = ProcessRuntime(store)
        [found] = await runtime.find()
        assert found.attempt
        await runtime.stop(found.attempt, "cancel")
        return found.alive, await runtime.wait(found.attempt)

    alive, end = asyncio.run(adopt())
    assert alive
    assert end.exit_code == -signal.SIGTERM


@pytest.mark.parametrize("prevented_by", ["fence", "lateness"])
def test_a_fenced_or_late_attempt_does_not_start(tmp_path: Path, prevented_by: str) -> None:
    store, ran = AttemptStore(tmp_path), tmp_path / "ran"
    launch = make_launch("a", f"touch {ran}")
    if prevented_by == "lateness":
        launch = replace(launch, start_before=time.time() - 1)
    folder = store.create(launch)
    if prevented_by == "fence":
        (folder / "fence").touch()
    line = [*supervise(folder, launch.start_before), *launch.command]
    assert subprocess.run(line).returncode == supervisor.NOT_STARTED
    assert not ran.exists()
    [found] = asyncio.run(ProcessRuntime(store).find())
    assert found.attempt is None, "it may be launched again"


def test_a_worker_does_not_fence_its_own_launch(tmp_path: Path) -> None:
    """A worker that has its lease again looks for attempts, also right after it launched one."""

    async def launch_and_find() -> End:
        runtime = ProcessRuntime(AttemptStore(tmp_path))
        attempt = await runtime.launch(make_launch("a", "exit 7"))
        await runtime.find()  # before the supervisor has written its pid
        return await runtime.wait(attempt)

    assert asyncio.run(launch_and_find()).exit_code == 7


def test_an_unwanted_attempt_leaves_nothing(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    with pytest.raises(LaunchCancelled):
        asyncio.run(ProcessRuntime(store).launch(make_launch("a", "true"), lambda: False))
    assert not list(store.open_attempts())


def test_a_command_that_does_not_exist_has_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    launch = replace(make_launch("a", ""), command=("/no/such/program",))
    [end] = asyncio.run(run_all(ProcessRuntime(AttemptStore(tmp_path)), launch))
    assert end.exit_code == 127
    output = (tmp_path / "attempts" / launch.id / "output.log").read_text()
    assert output == "/no/such/program: No such file or directory\n"


# -- a folder that several machines share -----------------------------------------------------


async def find_from_another_machine(tmp_path: Path, script: str) -> tuple[ProcessRuntime, Found]:
    """Return a runtime on machine-b, and the attempt that it finds of machine-a."""
    store, launch = AttemptStore(tmp_path), make_launch("a", script)
    await ProcessRuntime(store).launch(launch)
    pid_file = store.folder(launch) / "pid"
    while not pid_file.exists():
        await asyncio.sleep(0.01)
    pid, start, boot, _ = pid_file.read_text().split()
    pid_file.write_text(f"{pid} {start} {boot} machine-a")
    runtime = ProcessRuntime(store)
    [found] = await runtime.find()
    return runtime, found


def test_the_job_of_another_machine_is_followed_through_the_shared_folder(tmp_path: Path) -> None:
    async def follow() -> tuple[bool, End]:
        runtime, found = await find_from_another_machine(tmp_path, "sleep 0.3; exit 6")
        assert found.attempt
        return found.alive, await runtime.wait(found.attempt)

    alive, end = asyncio.run(follow())
    assert alive, "its pid means nothing on this machine"
    assert (end.exit_code, end.lost) == (6, False)


def test_the_job_of_another_machine_can_be_stopped(tmp_path: Path) -> None:
    async def stop() -> End:
        runtime, found = await find_from_another_machine(tmp_path, "sleep 30")
        assert found.attempt
        await runtime.stop(found.attempt, "cancel")
        return await runtime.wait(found.attempt)

    assert asyncio.run(stop()).exit_code == -signal.SIGTERM


def test_the_job_of_a_silent_machine_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def follow() -> End:
        runtime, found = await find_from_another_machine(tmp_path, "kill -9 $PPID; sleep 30")
        assert found.attempt
        monkeypatch.setattr("gpu_flows.runtimes.process.SILENT_AFTER_S", 0.5)
        return await runtime.wait(found.attempt)

    end = asyncio.run(follow())
    assert end.lost
    assert "machine-a" in end.detail
