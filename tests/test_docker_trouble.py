"""Workers that die, engines that die, and lines that lose answers: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from containers import (
    CollectingSink,
    collect_in,
    host_settings,
    make_launch,
    make_runtime,
    open_runtime,
    run,
    wait_for,
)
from docker.errors import APIError, NotFound
from docker_hosts.daemon import Daemon
from docker_hosts.lossy_proxy import LossyProxy
from docker_worker import FileSink

from gpu_flows.blocks import ContainerRules, DockerHost
from gpu_flows.runtimes.base import Launch, Mount, NodeUnreachable
from gpu_flows.runtimes.docker import container_follower, host_health
from gpu_flows.runtimes.docker.container_spec import container_name
from gpu_flows.runtimes.docker.host import Host, HostUnreachable

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow

COUNTS = "for i in $(seq $((10 + 5 * N))); do echo out $i; echo err $i >&2; sleep 0.1; done; exit $N"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Looks round often, and leaves no container on the shared engine to the next test."""
    monkeypatch.setattr(host_health, "CHECK_INTERVAL_S", 0.3)
    yield
    if "engine" in request.fixturenames:
        for each in request.getfixturevalue("engine").client().containers.list(all=True, ignore_removed=True):
            with suppress(NotFound, APIError):
                each.remove(force=True)


def ids(engine: Daemon) -> dict[str, str]:
    return {each.name: each.id for each in engine.client().containers.list(all=True, ignore_removed=True)}


@contextmanager
def worker(folder: Path, engine: Daemon, point: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """One that can be killed."""
    file = Path(__file__).with_name("docker_worker.py")
    command = [sys.executable, str(file), str(folder), engine.url, point, str(count), COUNTS]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def printed_by(number: int) -> list[str]:
    return sorted(f"{stream} {line}" for stream in ("out", "err") for line in range(1, 11 + 5 * number))


# -- workers that die -------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["here", "on another machine"])
def test_six_containers_survive_their_worker(engine: Daemon, tmp_path: Path, where: str) -> None:
    """Killed without warning, in the middle of their output. One ends while nobody watches."""
    sink = FileSink(tmp_path / "output")
    with worker(tmp_path, engine, "never", 6):
        eventually(lambda: len(tmp_path.joinpath("output").read_text().splitlines()) > 40, "all print")
    before = ids(engine)
    assert len(before) == 6

    async def main() -> None:
        await asyncio.sleep(2)
        attempt_store = tmp_path if where == "here" else tmp_path / "elsewhere"
        heard: list[Any] = []
        runtime = make_runtime(attempt_store, engine, sink=sink, on_found=heard.append)
        found = await runtime.find()
        assert len(found) == 6
        assert not heard, "what was found is not news"
        ends = await asyncio.gather(*(runtime.wait(each.attempt) for each in found if each.attempt))
        assert sorted(end.exit_code or 0 for end in ends) == [0, 1, 2, 3, 4, 5]
        assert not any(end.lost for end in ends)
        for each, end in zip(found, ends, strict=True):
            assert each.attempt
            assert sorted(sink.texts(each.launch)) == printed_by(end.exit_code or 0)
            times = [line.at_us for line in sink.printed(each.launch.job.id)]
            assert times == sorted(set(times))
            runtime.forget(each.launch)
        assert ids(engine) == before
        await runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("point", ["stored", "created"])
def test_what_a_worker_began_and_never_started_is_cleared_away(
    engine: Daemon, tmp_path: Path, point: str
) -> None:
    with worker(tmp_path, engine, point, 1) as dying:
        assert dying.wait(60) == -9
    assert len(ids(engine)) == (1 if point == "created" else 0)

    async def main() -> None:
        runtime = make_runtime(tmp_path, engine)
        [found] = await runtime.find()
        assert found.attempt is None
        assert not found.alive
        runtime.forget(found.launch)
        assert await runtime.find() == []
        await runtime.close()

    asyncio.run(main())
    assert not ids(engine)


def test_what_ran_and_was_removed_while_nobody_watched_is_lost_not_launched_again(
    engine: Daemon, tmp_path: Path
) -> None:
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


def test_what_is_removed_under_our_eyes_has_an_end_that_says_so(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runtime(tmp_path, engine) as docker:
            launch = make_launch("sleep", "60")
            attempt = await docker.launch(launch)
            engine.client().api.remove_container(container_name(launch), force=True)
            end = await docker.wait(attempt)
        # To remove it by force is to kill it first, and one may be quick enough to see that.
        assert end.exit_code == 137 or (end.exit_code is None and "removed by another program" in end.detail)

    asyncio.run(main())


# -- engines that die -------------------------------------------------------------------------


@pytest.mark.parametrize("live_restore", [False, True])
def test_an_engine_that_is_killed_and_comes_back_is_used_again(
    new_engine: Callable[..., Daemon], tmp_path: Path, live_restore: bool
) -> None:
    """Without live-restore Docker ends what ran; with it, it runs on. Either way its end is told."""
    engine = new_engine(options=["--live-restore"] if live_restore else [])

    async def main() -> None:
        sink, hosts = CollectingSink(), []
        async with open_runtime(tmp_path, engine, sink=sink, on_host=collect_in(hosts)) as docker:
            launch = make_launch("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done; exit 4")
            attempt = await docker.launch(launch)
            await wait_for(lambda: sink.texts(launch), "it prints")
            before = ids(engine)
            await asyncio.to_thread(engine.kill)
            await wait_for(lambda: len(hosts) == 2, "it is told down")
            with pytest.raises(NodeUnreachable, match="does not answer"):
                await docker.launch(make_launch("true"))
            await asyncio.to_thread(engine.start)
            await wait_for(lambda: len(hosts) == 3, "it is told up")
            end = await docker.wait(attempt)
            state = engine.client().api.inspect_container(container_name(launch))
            docker.forget(launch)
            assert (await run(docker, make_launch("true"))).exit_code == 0
        assert [(name, bool(trouble)) for name, trouble in hosts] == [
            ("host", False),
            ("host", True),
            ("host", False),
        ]
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


def test_what_is_lost_with_its_host_does_not_run_on_when_that_is_back(
    new_engine: Callable[..., Daemon], tmp_path: Path
) -> None:
    engine = new_engine(options=["--live-restore"])

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
            await wait_for(lambda: not ids(engine), "it is removed: its devices are others' now")

    asyncio.run(main())


def test_a_worker_that_starts_while_a_host_is_away_believes_its_book(
    new_engine: Callable[..., Daemon], tmp_path: Path
) -> None:
    engine = new_engine(options=["--live-restore"])

    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as first:
            launch = make_launch("sh", "-c", "echo a; sleep 6; echo b; exit 3")
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


# -- lines that lose answers ------------------------------------------------------------------


@pytest.mark.parametrize(("launches", "loss"), [(200, 0.05), (20, 0.4)])
def test_every_job_runs_exactly_once_over_a_line_that_loses_answers(
    engine: Daemon,
    tmp_path: Path,
    lossy: Callable[..., LossyProxy],
    monkeypatch: pytest.MonkeyPatch,
    launches: int,
    loss: float,
) -> None:
    monkeypatch.setattr(host_health, "CHECK_INTERVAL_S", 2.0)  # the engine needs its time for the starts
    line = lossy(engine, loss)
    counted = tmp_path / "counted"
    counted.mkdir()

    async def main() -> None:
        sink = CollectingSink()
        rules = ContainerRules(mount_roots=[str(counted)], keep_seconds=0, network="none")
        host = DockerHost(name="host", url=line.url, gpus=4)
        async with open_runtime(tmp_path / "attempt_store", host, rules=rules, sink=sink) as docker:
            places = asyncio.Semaphore(8)

            async def until_done(launch: Launch) -> None:
                """As the dispatcher does: a job whose host was away waits again, as another attempt."""
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
                secrets = {} if number % 4 else {"TOKEN": "x"}  # which take more calls
                launch = make_launch("sh", "-c", script, mounts=mounts, secrets=secrets)
                async with places:
                    await until_done(launch)
                return launch

            done = await asyncio.gather(*(one(number) for number in range(launches)))
            assert all(sink.texts(launch) == ["ran"] for launch in done)
            await wait_for(lambda: not ids(engine), "no orphan is left")
        ran = sorted(map(int, (counted / "all").read_text().split()))
        assert ran == list(range(launches))
        kinds = {path.rpartition("/")[2] for _, path in line.lost}
        assert {"create", "start"} <= kinds
        print(f"\n{launches} launches, {line.passed} answers, {len(line.lost)} lost, 0 twice, 0 left over")

    asyncio.run(main())


def test_a_stream_that_is_silent_is_asked_for_again(
    engine: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its other end may have vanished without a word. Nothing comes twice by that."""
    monkeypatch.setattr(container_follower, "STREAM_TIMEOUT_S", 0.3)

    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launch = make_launch("sh", "-c", "for i in 1 2 3; do echo $i; sleep 1.2; done; printf end")
            assert (await run(docker, launch)).exit_code == 0
        assert sink.texts(launch) == ["1", "2", "3", "end"]
        silent = engine.client().containers.run("bare:test", "sleep 60", detach=True)
        with pytest.raises(HostUnreachable):
            Host(host_settings(engine)).call_blocking(
                lambda api: list(api.logs(silent.id, stream=True, follow=True)), timeout_s=0.3
            )

    asyncio.run(main())


# -- ways to a host ---------------------------------------------------------------------------


async def first_trouble(folder: Path, host: DockerHost) -> str:
    hosts: list[Any] = []
    async with open_runtime(folder, host, on_host=collect_in(hosts)) as docker:
        await wait_for(lambda: hosts, "it was asked")
        if not hosts[0][1]:
            assert (await run(docker, make_launch("true"))).exit_code == 0
        return str(hosts[0][1])


def test_a_host_behind_tls_lets_in_who_has_its_authoritys_certificate(
    new_engine: Callable[..., Daemon], tmp_path: Path
) -> None:
    from docker_hosts.certificates import make_certificates

    engine = new_engine(tls=True)
    assert engine.certificates
    right, other = engine.certificates, make_certificates(tmp_path / "other")

    def host(ca: Path, cert: Path, key: Path) -> DockerHost:
        folder = tmp_path / f"tls-{ca.parent.name}-{cert.parent.name}"
        folder.mkdir()
        for source, name in ((ca, "ca.pem"), (cert, "cert.pem"), (key, "key.pem")):
            shutil.copy(source, folder / name)
        return DockerHost(name="host", url=engine.tcp_url, tls_directory=str(folder), gpus=4)

    async def main() -> None:
        good = host(right.ca, right.cert, right.key)
        assert await first_trouble(tmp_path / "1", good) == ""
        wrong_authority = host(other.ca, right.cert, right.key)
        assert "certificate verify failed" in await first_trouble(tmp_path / "2", wrong_authority)
        stranger = host(right.ca, other.cert, other.key)
        assert "does not answer" in await first_trouble(tmp_path / "3", stranger)
        nothing = good.model_copy(update={"tls_directory": str(tmp_path)})
        assert "certificate" in await first_trouble(tmp_path / "4", nothing)

    asyncio.run(main())


def test_plain_tcp_is_for_those_who_say_that_they_mean_it(
    new_engine: Callable[..., Daemon], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="root on the machine"):
        DockerHost(name="host", url="tcp://10.0.0.1:2375")
    engine = new_engine(tcp=True)
    host = DockerHost(name="host", url=engine.tcp_url, insecure=True, gpus=4)
    assert asyncio.run(first_trouble(tmp_path, host)) == ""


@pytest.mark.skipif(shutil.which("docker") is None, reason="Not installed: the docker command.")
def test_a_host_behind_ssh(engine: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"

    def let(script: str) -> None:
        ssh.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{script}\n')
        ssh.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    host = DockerHost(name="host", url="ssh://me@gpu1:2222", gpus=4)
    let(f"exec docker -H {engine.url} system dial-stdio")
    assert asyncio.run(first_trouble(tmp_path / "1", host)) == ""
    [asked, *_] = (tmp_path / "asked").read_text().splitlines()
    assert asked.endswith("-l me -p 2222 -- gpu1 docker system dial-stdio")
    let("echo 'me@gpu1: Permission denied (publickey).' >&2; exit 255")
    assert "Permission denied" in asyncio.run(first_trouble(tmp_path / "2", host))
    let("exec sleep 30")
    monkeypatch.setattr(host_health, "HEALTH_CHECK_S", 0.5)
    assert "timed out" in asyncio.run(first_trouble(tmp_path / "3", host))
