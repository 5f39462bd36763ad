"""Killed workers, killed engines and lost answers: no container is lost, and none runs twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from containers import CollectingSink, make_launch, make_runtime, open_runtime, run, shell, wait_for
from docker_hosts.daemon import Daemon
from docker_hosts.lossy_proxy import LossyProxy
from docker_worker import FileSink

from gpu_flows.blocks import ContainerRules, DockerHost
from gpu_flows.runtimes.base import Launch, Mount, NodeUnreachable
from gpu_flows.runtimes.docker import container_follower, host_health
from gpu_flows.runtimes.docker.container_spec import container_name
from gpu_flows.runtimes.docker.host import Host, HostUnreachable

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_engine")]

COUNTS = "for i in $(seq $((10 + 5 * N))); do echo out $i; echo err $i >&2; sleep 0.1; done; exit $N"


@pytest.fixture
def surviving_engine(new_engine: Callable[..., Daemon]) -> Daemon:
    """An engine whose containers go on running when it is killed."""
    return new_engine(options=["--live-restore"])


@contextmanager
def worker(folder: Path, engine: Daemon, point: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker that kills itself at this point, or is killed at the end."""
    file = Path(__file__).with_name("docker_worker.py")
    command = [sys.executable, str(file), str(folder), engine.url, point, str(count), COUNTS]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def expected_output(number: int) -> list[str]:
    return sorted(f"{stream} {line}" for stream in ("out", "err") for line in range(1, 11 + 5 * number))


# -- killed workers ---------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["here", "on another machine"])
def test_containers_outlive_their_worker_and_are_adopted(engine: Daemon, tmp_path: Path, where: str) -> None:
    """The worker is killed in the middle of their output. One ends before the next worker starts."""
    sink = FileSink(tmp_path / "output")
    with worker(tmp_path, engine, "never", 6):
        eventually(lambda: len((tmp_path / "output").read_text().splitlines()) > 40, "they print")
    before = engine.list_containers()
    assert len(before) == 6

    async def main() -> None:
        await asyncio.sleep(2)
        folder = tmp_path if where == "here" else tmp_path / "elsewhere"
        late: list[Any] = []
        runtime = make_runtime(folder, engine, sink=sink, on_found=late.append)
        found = await runtime.find()
        assert len(found) == 6
        assert not late, "`find` returns them, so `on_found` does not"
        ends = await asyncio.gather(*(runtime.wait(item.attempt) for item in found if item.attempt))
        assert sorted(end.exit_code or 0 for end in ends) == [0, 1, 2, 3, 4, 5]
        assert not any(end.lost for end in ends)
        for item, end in zip(found, ends, strict=True):
            assert item.attempt
            assert sorted(sink.texts(item.launch)) == expected_output(end.exit_code or 0)
            times = [line.at_us for line in sink.printed(item.launch.job.id)]
            assert times == sorted(set(times))
            runtime.forget(item.launch)
        assert engine.list_containers() == before
        await runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("point", ["stored", "created"])
def test_a_container_that_never_started_is_removed(engine: Daemon, tmp_path: Path, point: str) -> None:
    with worker(tmp_path, engine, point, 1) as process:
        assert process.wait(60) == -9
    assert len(engine.list_containers()) == (1 if point == "created" else 0)

    async def main() -> None:
        runtime = make_runtime(tmp_path, engine)
        [found] = await runtime.find()
        assert found.attempt is None
        assert not found.alive
        runtime.forget(found.launch)
        assert await runtime.find() == []
        await runtime.close()

    asyncio.run(main())
    assert not engine.list_containers()


def test_a_container_removed_without_a_worker_is_lost(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        launch = make_launch("sleep", "60")
        async with open_runtime(tmp_path, engine) as docker:
            await docker.launch(launch)
        engine.client().api.remove_container(container_name(launch), force=True)
        runtime = make_runtime(tmp_path, engine)
        [found] = await runtime.find()
        assert found.attempt
        assert not found.alive
        assert (await runtime.wait(found.attempt)).lost
        await runtime.close()

    asyncio.run(main())


def test_a_container_removed_by_another_program_has_ended(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runtime(tmp_path, engine) as docker:
            launch = make_launch("sleep", "60")
            attempt = await docker.launch(launch)
            engine.client().api.remove_container(container_name(launch), force=True)
            end = await docker.wait(attempt)
        # Docker kills it before it removes it, and the follower may see either.
        assert end.exit_code == 137 or (end.exit_code is None and "removed by another program" in end.detail)

    asyncio.run(main())


# -- killed engines ---------------------------------------------------------------------------


@pytest.mark.parametrize("live_restore", [False, True])
def test_a_killed_engine_is_used_again_after_its_restart(
    new_engine: Callable[..., Daemon], tmp_path: Path, live_restore: bool
) -> None:
    """Docker stops its containers, or with live-restore keeps them running. Both ends are reported."""
    engine = new_engine(options=["--live-restore"] if live_restore else [])

    async def main() -> None:
        sink, hosts = CollectingSink(), []
        async with open_runtime(
            tmp_path, engine, sink=sink, on_host=lambda *change: hosts.append(change)
        ) as docker:
            launch = shell("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done; exit 4")
            attempt = await docker.launch(launch)
            await wait_for(lambda: sink.texts(launch), "it prints")
            before = engine.list_containers()
            await asyncio.to_thread(engine.kill)
            await wait_for(lambda: len(hosts) >= 2, "it is reported down")
            with pytest.raises(NodeUnreachable, match="does not answer"):
                await docker.launch(make_launch("true"))
            await asyncio.to_thread(engine.start)
            await wait_for(lambda: len(hosts) >= 3 and not hosts[-1][1], "it is reported up")
            end = await docker.wait(attempt)
            state = engine.client().api.inspect_container(container_name(launch))
            docker.forget(launch)
            assert (await run(docker, make_launch("true"))).exit_code == 0
        assert {name for name, _ in hosts} == {"host"}
        assert [bool(trouble) for _, trouble in hosts][:2] == [False, True]
        assert not end.lost
        if live_restore:
            assert end.exit_code == 4
            assert sink.texts(launch) == list("12345678")
        else:
            assert end.exit_code is not None
            assert sink.texts(launch) == list("12345678")[: len(sink.texts(launch))]
        assert state["Id"] in before.values()
        assert state["RestartCount"] == 0

    asyncio.run(main())


def test_a_lost_container_is_removed_when_its_host_is_back(surviving_engine: Daemon, tmp_path: Path) -> None:
    engine = surviving_engine

    async def main() -> None:
        rules = ContainerRules(lost_after_seconds=2)
        async with open_runtime(tmp_path, engine, rules=rules) as docker:
            launch = make_launch("sleep", "600")
            attempt = await docker.launch(launch)
            await asyncio.to_thread(engine.kill)
            end = await docker.wait(attempt)
            assert end.lost
            assert "does not answer" in end.detail
            docker.forget(launch)
            await asyncio.to_thread(engine.start)
            await wait_for(lambda: not engine.list_containers(), "it is removed")

    asyncio.run(main())


def test_a_worker_that_starts_while_a_host_is_down_trusts_its_store(
    surviving_engine: Daemon, tmp_path: Path
) -> None:
    engine = surviving_engine

    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as first:
            launch = shell("echo a; sleep 6; echo b; exit 3")
            await first.launch(launch)
            await wait_for(lambda: sink.texts(launch), "it prints")
        await asyncio.to_thread(engine.kill)
        second = make_runtime(tmp_path, engine, sink=sink)
        [found] = await second.find()
        assert found.alive
        assert found.attempt
        await asyncio.to_thread(engine.start)
        assert (await second.wait(found.attempt)).exit_code == 3
        assert sink.texts(launch) == ["a", "b"]
        await second.close()

    asyncio.run(main())


# -- lost answers -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("launches", "loss"), [(200, 0.05), (20, 0.4)])
def test_every_job_runs_exactly_once_when_answers_get_lost(
    engine: Daemon,
    tmp_path: Path,
    lossy: Callable[..., LossyProxy],
    monkeypatch: pytest.MonkeyPatch,
    launches: int,
    loss: float,
) -> None:
    monkeypatch.setattr(host_health, "CHECK_INTERVAL_S", 2.0)  # the engine needs its time for the starts
    proxy = lossy(engine, loss)
    counted = tmp_path / "counted"
    counted.mkdir()

    async def main() -> None:
        sink = CollectingSink()
        rules = ContainerRules(mount_roots=[str(counted)], keep_seconds=0, network="none")
        host = DockerHost(name="host", url=proxy.url, gpus=4)
        async with open_runtime(tmp_path / "store", host, rules=rules, sink=sink) as docker:
            slots = asyncio.Semaphore(8)

            async def until_done(launch: Launch) -> None:
                """Launch it again as another attempt if its host was unreachable, as the dispatcher does."""
                while True:
                    try:
                        end = await run(docker, launch)
                        assert (end.exit_code, end.lost) == (0, False)
                        return
                    except NodeUnreachable:
                        launch = replace(launch, attempt=launch.attempt + 1)
                        await asyncio.sleep(0.5)

            async def one(number: int) -> Launch:
                script = f"echo ran; echo {number} >> /counted/all"
                mounts = (Mount(str(counted), "/counted"),)
                secrets = {} if number % 4 else {"TOKEN": "x"}  # secrets need more calls
                launch = shell(script, mounts=mounts, secrets=secrets)
                async with slots:
                    await until_done(launch)
                return launch

            done = await asyncio.gather(*(one(number) for number in range(launches)))
            assert all(sink.texts(launch) == ["ran"] for launch in done)
            await wait_for(lambda: not engine.list_containers(), "no container is left")
        ran = sorted(map(int, (counted / "all").read_text().split()))
        assert ran == list(range(launches))
        kinds = {path.rpartition("/")[2] for _, path in proxy.lost}
        assert {"create", "start"} <= kinds
        print(f"\n{launches} launches, {proxy.passed} answers, {len(proxy.lost)} lost, 0 twice, 0 left over")

    asyncio.run(main())


def test_a_silent_stream_is_opened_again(
    engine: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other end may have vanished. No line arrives twice because of that."""
    monkeypatch.setattr(container_follower, "STREAM_TIMEOUT_S", 0.3)

    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launch = shell("for i in 1 2 3; do echo $i; sleep 1.2; done; printf end")
            assert (await run(docker, launch)).exit_code == 0
        assert sink.texts(launch) == ["1", "2", "3", "end"]
        silent = engine.client().containers.run("bare:test", "sleep 60", detach=True)
        with pytest.raises(HostUnreachable):
            Host(engine.settings()).call_blocking(
                lambda api: list(api.logs(silent.id, stream=True, follow=True)), timeout_s=0.3
            )

    asyncio.run(main())
