"""Containers on a real engine: what they print, how they end, what they get, and what is left of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from containers import CollectingSink, collect_in, host_settings, make_launch, open_runtime, run, wait_for
from docker.errors import NotFound
from docker_hosts.daemon import Daemon

from gpu_flows.blocks import ContainerRules
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch, LaunchCancelled, LaunchError, Mount, Refused
from gpu_flows.runtimes.docker import adoption, container_spec, host_health
from gpu_flows.runtimes.docker.container_spec import container_name
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.runtimes.docker.runtime import DockerRuntime
from gpu_flows.schedulers.model import Device

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def clean(engine: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Looks round often, and leaves no container to the next test."""
    monkeypatch.setattr(host_health, "CHECK_INTERVAL_S", 0.3)
    yield
    for each in engine.client().containers.list(all=True, ignore_removed=True):
        with suppress(NotFound):
            each.remove(force=True)


def names(engine: Daemon) -> set[str]:
    return {each.name for each in engine.client().containers.list(all=True, ignore_removed=True)}


def inspect(engine: Daemon, launch: Launch) -> dict[str, Any]:
    return dict(engine.client().api.inspect_container(container_name(launch)))


def variant(engine: Daemon, tag: str, *changes: str) -> str:
    """The bare image with a change to it."""
    client = engine.client()
    made = client.containers.create("bare:test")
    made.commit(*tag.split(":"), changes=list(changes))
    made.remove()
    return tag


def shell(script: str, **more: Any) -> Launch:
    return make_launch("sh", "-c", script, **more)


# -- what they print, and how they end --------------------------------------------------------


def test_all_that_it_prints_arrives(engine: Daemon, tmp_path: Path) -> None:
    """Both streams, empty lines, lines longer than Docker's pieces, and a last one that does not end."""
    long = "head -c 40000 /dev/zero | tr '\\0' x"
    scripts = {
        "echo out; echo; echo err >&2; printf last": ["out", "", "err", "last"],
        f"{long}; echo; {long}": ["x" * 40_000, "x" * 40_000],
        "seq 5000": [str(number) for number in range(1, 5001)],
        "printf 'a\\0b\\377c\\n'": ["a\0b\N{REPLACEMENT CHARACTER}c"],
        "true": [],
    }

    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launches = [shell(script) for script in scripts]
            ends = await asyncio.gather(*(run(docker, launch) for launch in launches))
        assert [end.exit_code for end in ends] == [0] * len(scripts)
        for launch, printed in zip(launches, scripts.values(), strict=True):
            assert sorted(sink.texts(launch)) == sorted(printed)  # two streams may overtake each other
        assert sink.texts(launches[2]) == scripts["seq 5000"]

    asyncio.run(main())


def test_lines_arrive_while_it_runs(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launch = shell("echo first; sleep 60")
            attempt = await docker.launch(launch)
            await wait_for(lambda: sink.texts(launch) == ["first"], "its line arrived")
            await docker.stop(attempt, "cancel")
            assert (await docker.wait(attempt)).exit_code == 143

    asyncio.run(main())


def test_its_end_is_told_as_it_was(engine: Daemon, tmp_path: Path) -> None:
    hog = "head -c 30000000 /dev/zero | tail -c 30000000 | (sleep 2; wc -c)"

    async def main() -> None:
        async with open_runtime(tmp_path, engine) as docker:
            plain, killed, starved, fat = await asyncio.gather(
                run(docker, shell("exit 7")),
                run(docker, shell("kill -9 $$")),
                run(docker, make_launch("tail", "/dev/zero", memory_mb=24)),
                run(docker, shell(hog, memory_mb=256)),
            )
        assert (plain.exit_code, plain.oom_killed, plain.lost) == (7, False, False)
        assert killed.exit_code == 137
        assert not killed.oom_killed
        assert starved.oom_killed
        assert starved.exit_code == 137
        assert "memory" in starved.detail
        assert fat.exit_code == 0
        assert 28 < (fat.peak_memory_mb or 0) < 100

    asyncio.run(main())


def test_a_command_that_is_not_there_says_so(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launch = make_launch("nosuchcommand")
            assert (await run(docker, launch)).exit_code == 127
        assert "nosuchcommand" in "".join(sink.texts(launch))

    asyncio.run(main())


def test_what_docker_cannot_start_leaves_nothing(engine: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    async def main() -> None:
        rules = ContainerRules(mount_roots=[str(tmp_path)])
        async with open_runtime(tmp_path / "attempt_store", engine, rules=rules) as docker:
            with pytest.raises(LaunchError, match=r"cannot start it.*mount"):
                await docker.launch(
                    make_launch("true", mounts=(Mount(str(file), "/home"),))
                )  # a folder there

    asyncio.run(main())
    assert not names(engine)


# -- stopped ----------------------------------------------------------------------------------


def test_who_hears_is_given_its_grace_and_who_does_not_is_killed(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            polite = shell(
                "trap 'sleep 0.5; echo saved; exit 5' TERM; echo up; while :; do sleep 0.1; done", grace_s=20
            )
            deaf = shell("trap '' TERM; echo up; while :; do sleep 0.1; done", grace_s=0.5)
            attempts = [await docker.launch(launch) for launch in (polite, deaf)]
            await wait_for(lambda: "up" in sink.texts(polite) and "up" in sink.texts(deaf), "both are ready")
            await asyncio.gather(*(docker.stop(attempt, "cancel") for attempt in attempts))
            ends = [await docker.wait(attempt) for attempt in attempts]
        assert [end.exit_code for end in ends] == [5, 137]
        assert sink.texts(polite) == ["up", "saved"]

    asyncio.run(main())


def test_what_is_cancelled_before_it_starts_leaves_nothing(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launch = make_launch("echo", "ran", secrets={"TOKEN": "x"})
            with pytest.raises(LaunchCancelled):
                await docker.launch(launch, lambda: False)
        assert not sink.texts(launch)

    asyncio.run(main())
    assert not names(engine)


# -- exactly once -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["created", "ended"])
def test_a_stranger_of_the_same_name_is_an_error_and_is_left_alone(
    engine: Daemon, tmp_path: Path, state: str
) -> None:
    launch = make_launch("true")
    theirs = engine.client().containers.create("bare:test", "true", name=container_name(launch))
    if state == "ended":
        theirs.start()
        theirs.wait()

    async def main() -> None:
        async with open_runtime(tmp_path, engine) as docker:
            with pytest.raises(LaunchError, match="not ours"):
                await docker.launch(launch)

    asyncio.run(main())
    assert inspect(engine, launch)["Id"] == theirs.id


def test_a_second_launch_of_an_attempt_is_the_first_one(engine: Daemon, tmp_path: Path) -> None:
    """Whether it runs, or has ended; in the same worker, or in another that planned it again."""
    launch = shell("echo once; sleep 2; exit 3")

    async def main() -> None:
        first, second = CollectingSink(), CollectingSink()
        async with (
            open_runtime(tmp_path / "a", engine, sink=first) as here,
            open_runtime(tmp_path / "b", engine, sink=second, may_act=lambda: False) as there,
        ):
            attempt = await here.launch(launch)
            before = inspect(engine, launch)
            assert (await here.launch(launch)).identifier == attempt.identifier
            again = await there.launch(replace(launch, policy="another", planned=5.0))
            ends = [await here.wait(attempt), await there.wait(again)]
            after = inspect(engine, launch)
            there.forget(launch)
            with pytest.raises(LaunchError, match="has ended"):
                await there.launch(launch)
        assert [end.exit_code for end in ends] == [3, 3]
        assert first.texts(launch) == second.texts(launch) == ["once"]
        assert (before["Id"], before["State"]["StartedAt"]) == (after["Id"], after["State"]["StartedAt"])

        async with open_runtime(tmp_path / "c", engine, may_act=lambda: False) as later:
            later._running.by_attempt.clear()  # it has not heard of it
            assert (await later.wait(await later.launch(launch))).exit_code == 3
        assert inspect(engine, launch)["State"]["StartedAt"] == before["State"]["StartedAt"]

    asyncio.run(main())


# -- what it gets -----------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["", "worker", "1000", "1000:1000"])
def test_a_secret_is_a_file_that_its_user_alone_reads(engine: Daemon, tmp_path: Path, user: str) -> None:
    image = variant(engine, f"user:{user.replace(':', '-') or 'root'}", *([f"USER {user}"] if user else []))
    script = "id -u; cat $TOKEN_FILE; stat -c %a $TOKEN_FILE; env | grep -c ^TOKEN="

    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launch = shell(script, image=image, secrets={"TOKEN": "sesame\n"}, env={"TOKEN": "sesame\n"})
            await docker.wait(await docker.launch(launch))
            assert "sesame" not in json.dumps(inspect(engine, launch))
        assert sink.texts(launch) == ["1000" if user else "0", "sesame", "400", "0"]
        assert not any("sesame" in file.read_text() for file in tmp_path.rglob("*") if file.is_file())

    asyncio.run(main())


def test_a_container_has_its_limits_and_no_privileges(engine: Daemon, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("from the host")
    script = "grep CapEff /proc/self/status; df -m /dev/shm; cat /data/file; touch /data/x || echo read-only"

    async def main() -> None:
        sink = CollectingSink()
        rules = ContainerRules(mount_roots=[str(tmp_path)], most_memory_gb=0.25)
        async with open_runtime(tmp_path / "attempt_store", engine, sink=sink, rules=rules) as docker:
            launch = shell(
                script, mounts=(Mount(str(tmp_path / "data"), "/data", read_only=True),), shm_mb=256
            )
            await docker.wait(await docker.launch(launch))
            config = inspect(engine, launch)["HostConfig"]
        printed = "\n".join(sink.texts(launch))
        assert "0000000000000000" in printed
        assert "256" in printed
        assert "from the host" in printed
        assert "read-only" in printed
        assert (config["Memory"], config["Privileged"]) == (256 * 1024 * 1024, False)

    asyncio.run(main())


def test_a_link_that_is_bent_while_it_is_launched_is_refused(engine: Daemon, tmp_path: Path) -> None:
    (tmp_path / "data" / "set").mkdir(parents=True)
    link = tmp_path / "data" / "link"
    link.symlink_to("set")

    async def main() -> None:
        rules = ContainerRules(mount_roots=[str(tmp_path / "data")])
        async with open_runtime(tmp_path / "attempt_store", engine, rules=rules) as docker:
            launch = make_launch("true", mounts=(Mount(str(link), "/data"),), secrets={"TOKEN": "x"})
            bend = lambda: (link.unlink(), link.symlink_to("/etc"))  # noqa: E731
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(container_spec, "container_files", lambda launch: bend() and {})
                with pytest.raises(Refused, match="leads to '/etc'"):
                    await docker.launch(launch)

    asyncio.run(main())
    assert not names(engine)


def test_a_container_sees_its_own_devices_and_no_others(
    new_engine: Callable[..., Daemon], tmp_path: Path
) -> None:
    """Docker sends a device request to NVIDIA's hook: here to one that gives nothing, but is told."""
    hook = tmp_path / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\ncat > /dev/null\n")
    hook.chmod(0o755)
    engine = new_engine("nvidia", path_prefix=hook.parent)
    greedy = variant(
        engine, "greedy:test", "ENV NVIDIA_VISIBLE_DEVICES=all", "ENV CUDA_VISIBLE_DEVICES=0,1,2,3"
    )
    launch = make_launch("env", image=greedy)
    launch = replace(launch, devices=(Device("GPU-8f6d", "host", 2), Device("GPU-77aa", "host", 3)))

    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(
            tmp_path / "attempt_store", host_settings(engine, gpu_access="nvidia"), sink=sink
        ) as docker:
            await docker.wait(await docker.launch(launch))
            [request] = inspect(engine, launch)["HostConfig"]["DeviceRequests"]
        visible = {line for line in sink.texts(launch) if "VISIBLE_DEVICES" in line}
        assert visible == {
            "NVIDIA_VISIBLE_DEVICES=GPU-8f6d,GPU-77aa",
            "CUDA_VISIBLE_DEVICES=GPU-8f6d,GPU-77aa",
        }
        assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", ["GPU-8f6d", "GPU-77aa"])

    asyncio.run(main())


# -- afterwards -------------------------------------------------------------------------------


def test_the_reaper_takes_what_is_ours_and_over_and_nothing_else(
    engine: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "UNSTARTED_S", 0.0)
    client = engine.client()

    def ours(launch: Launch, installation: str = "test") -> str:
        """A container as a worker makes it."""
        api = client.api
        told = container_spec.create_arguments(
            api, launch, installation, Host(host_settings(engine)), ContainerRules()
        )
        return str(api.create_container(**told)["Id"])

    async def main() -> None:
        async with open_runtime(tmp_path, engine, rules=ContainerRules(keep_seconds=0)) as docker:
            # Somebody else's: without labels, with labels that its image forged, of another installation.
            client.containers.run("bare:test", "true", name="gf-looks-like-ours-1", detach=True).wait()
            labels = container_spec.container_labels(make_launch("true"), "test")
            forged = variant(
                engine, "forged:test", *(f"LABEL {key}={json.dumps(value)}" for key, value in labels.items())
            )
            client.containers.run(forged, "true", name="forged", detach=True).wait()
            client.containers.run(forged, "sleep 60", name="gf-forged-1", detach=True)
            other = make_launch("sleep", "60")
            client.api.start(ours(other, "other"))
            # Ours: ended and noted, never started, and one that runs though its attempt is over.
            await run(docker, make_launch("true"))
            ours(make_launch("true"))
            over = make_launch("sleep", "60")
            docker._attempt_store.create(over)
            docker._attempt_store.mark_ended(over)
            client.api.start(ours(over))
            # Ours, and it runs.
            running = make_launch("sleep", "60")
            await docker.launch(running)
            left = {
                "gf-looks-like-ours-1",
                "forged",
                "gf-forged-1",
                container_name(other),
                container_name(running),
            }
            await wait_for(lambda: names(engine) == left, "what is over is gone")
            await asyncio.sleep(1.5)
            assert names(engine) == left
        states = {each.name: each.status for each in client.containers.list(all=True, ignore_removed=True)}
        assert (
            states[container_name(other)]
            == states[container_name(running)]
            == states["gf-forged-1"]
            == "running"
        )

    asyncio.run(main())


def test_an_ended_container_can_be_looked_at_for_a_while(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runtime(tmp_path, engine, rules=ContainerRules(keep_seconds=6)) as docker:
            launch = shell("echo look; sleep 7")  # silent for longer than it is kept
            await run(docker, launch)
            await asyncio.sleep(1)
            assert container_name(launch) in names(engine)
            await wait_for(lambda: not names(engine), "it is removed after its time")

    asyncio.run(main())


def test_two_installations_on_one_engine_ignore_each_other(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        found: list[Any] = []
        async with open_runtime(tmp_path / "a", engine, installation="a") as one:
            launch = make_launch("sleep", "3")
            attempt = await one.launch(launch)
            rules = ContainerRules(keep_seconds=0)
            async with open_runtime(
                tmp_path / "b", engine, installation="b", rules=rules, on_found=found.append
            ) as two:
                assert await two.find() == []
                assert (await one.wait(attempt)).exit_code == 0
                await asyncio.sleep(1)
        assert not found
        assert names(engine) == {container_name(launch)}

    asyncio.run(main())


# -- while hosts change -----------------------------------------------------------------------


def test_a_host_whose_settings_change_is_used_on_and_its_jobs_are_followed_to_their_end(
    engine: Daemon, tmp_path: Path
) -> None:
    async def main() -> None:
        hosts: list[tuple[str, str]] = []
        async with open_runtime(tmp_path, engine, on_host=collect_in(hosts)) as docker:
            before = make_launch("sleep", "3")
            attempt = await docker.launch(before)
            docker.configure_hosts(
                [host_settings(engine, rack="another")], ContainerRules(), one_for_all=False
            )
            await wait_for(lambda: hosts == [("host", ""), ("host", "")], "it is told to be up again")
            assert (await run(docker, make_launch("true"))).exit_code == 0
            assert (await docker.wait(attempt)).exit_code == 0
            docker.forget(before)

    asyncio.run(main())


def test_a_worker_that_was_not_told_of_any_host_believes_nothing_lost(engine: Daemon, tmp_path: Path) -> None:
    """Its cluster block makes no sense. When it does again, what runs is found."""

    async def main() -> None:
        found: list[Any] = []
        launch = make_launch("sleep", "20")
        async with open_runtime(tmp_path, engine) as before:
            await before.launch(launch)
        later = DockerRuntime(AttemptStore(tmp_path), "test", CollectingSink(), on_found=found.append)
        assert await later.find() == []
        later.configure_hosts([host_settings(engine)], ContainerRules(), one_for_all=False)
        await wait_for(lambda: [each.launch.id for each in found if each.alive] == [launch.id], "it is found")
        await later.kill_all()
        await later.close()

    asyncio.run(main())
