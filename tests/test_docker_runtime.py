"""One container on a real engine: its output, its end, stopping it, launching it once, and what it gets."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from containers import CollectingSink, make_launch, open_runtime, run, run_alone, shell, wait_for
from docker_hosts.daemon import Daemon
from environment import EnvironmentalFailure

from gpu_flows.blocks import ContainerRules
from gpu_flows.runtimes.base import Launch, LaunchCancelled, LaunchError, Mount
from gpu_flows.runtimes.docker import container_start
from gpu_flows.runtimes.docker.container_spec import container_name
from gpu_flows.runtimes.docker.container_start import ContainerStart, has_started
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.runtimes.docker.mounts import OpenMounts
from gpu_flows.schedulers.model import Device

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_engine")]


def launch_and_fail(engine: Daemon, folder: Path, launch: Launch, *mount_roots: Path) -> LaunchError:
    """Return the error of a launch that must fail."""

    async def main() -> LaunchError:
        rules = ContainerRules(mount_roots=[str(root) for root in mount_roots])
        async with open_runtime(folder, engine, rules=rules) as docker:
            with pytest.raises(LaunchError) as raised:
                await docker.launch(launch)
        return raised.value

    return asyncio.run(main())


# -- output and end ---------------------------------------------------------------------------


def test_all_output_arrives(engine: Daemon, tmp_path: Path) -> None:
    """Both streams, empty lines, lines that Docker splits, and a last line without a newline."""
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
            assert sorted(sink.texts(launch)) == sorted(printed)  # the order of two streams is not defined
        assert sink.texts(launches[2]) == scripts["seq 5000"]

    asyncio.run(main())


def test_output_arrives_while_the_container_runs(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launch = shell("echo first; sleep 60")
            attempt = await docker.launch(launch)
            await wait_for(lambda: sink.texts(launch) == ["first"], "the line has arrived")
            await docker.stop(attempt, "cancel")
            assert (await docker.wait(attempt)).exit_code == 143

    asyncio.run(main())


def test_the_end_has_exit_code_memory_and_reason(engine: Daemon, tmp_path: Path) -> None:
    large = "head -c 30000000 /dev/zero | tail -c 30000000 | (sleep 2; wc -c)"

    async def main() -> None:
        async with open_runtime(tmp_path, engine) as docker:
            failed, killed, out_of_memory, measured = await asyncio.gather(
                run(docker, shell("exit 7")),
                run(docker, shell("kill -9 $$")),
                run(docker, make_launch("tail", "/dev/zero", memory_mb=24)),
                run(docker, shell(large, memory_mb=256)),
            )
        assert (failed.exit_code, failed.oom_killed, failed.lost) == (7, False, False)
        assert (killed.exit_code, killed.oom_killed) == (137, False)
        assert out_of_memory.exit_code == 137
        if not out_of_memory.oom_killed:  # its event reached the engine after that of the exit
            raise EnvironmentalFailure("Docker did not report that the kernel killed the container")
        assert "memory" in out_of_memory.detail
        assert measured.exit_code == 0
        assert 28 < (measured.peak_memory_mb or 0) < 100

    asyncio.run(main())


def test_a_missing_command_is_named_in_the_output(engine: Daemon, tmp_path: Path) -> None:
    launch = make_launch("nosuchcommand")
    end, sink = run_alone(tmp_path, engine, launch)
    assert end.exit_code == 127
    assert "nosuchcommand" in "".join(sink.texts(launch))


def test_a_failed_start_leaves_no_container(engine: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    launch = make_launch("true", mounts=(Mount(str(file), "/home"),))  # a file over a folder
    error = str(launch_and_fail(engine, tmp_path / "store", launch, file))
    assert "cannot start it" in error
    assert "mount" in error
    assert not engine.list_containers()


# -- stop -------------------------------------------------------------------------------------


def test_stop_waits_for_the_grace_period_then_kills(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            loop = "echo up; while :; do sleep 0.1; done"
            saving = shell(f"trap 'sleep 0.5; echo saved; exit 5' TERM; {loop}", grace_s=20)
            ignoring = shell(f"trap '' TERM; {loop}", grace_s=0.5)
            attempts = [await docker.launch(launch) for launch in (saving, ignoring)]
            await wait_for(lambda: "up" in sink.texts(saving) and "up" in sink.texts(ignoring), "both run")
            await asyncio.gather(*(docker.stop(attempt, "cancel") for attempt in attempts))
            ends = [await docker.wait(attempt) for attempt in attempts]
        assert [end.exit_code for end in ends] == [5, 137]
        assert sink.texts(saving) == ["up", "saved"]

    asyncio.run(main())


def test_a_launch_cancelled_before_the_start_leaves_no_container(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        sink = CollectingSink()
        async with open_runtime(tmp_path, engine, sink=sink) as docker:
            launch = make_launch("echo", "ran", secrets={"TOKEN": "x"})
            with pytest.raises(LaunchCancelled):
                await docker.launch(launch, lambda: False)
        assert not sink.texts(launch)

    asyncio.run(main())
    assert not engine.list_containers()


# -- exactly once -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["created", "ended"])
def test_a_foreign_container_of_the_same_name_is_an_error(engine: Daemon, tmp_path: Path, state: str) -> None:
    launch = make_launch("true")
    name = container_name(launch)
    foreign = engine.client().containers.create("bare:test", "true", name=name)
    if state == "ended":
        foreign.start()
        foreign.wait()
    assert "not ours" in str(launch_and_fail(engine, tmp_path, launch))
    assert engine.inspect(container_name(launch))["Id"] == foreign.id


def test_a_second_launch_of_an_attempt_uses_the_same_container(engine: Daemon, tmp_path: Path) -> None:
    """While it runs and after its end; in the same worker, and in another one that planned it again."""
    launch = shell("echo once; sleep 2; exit 3")

    async def main() -> None:
        first, second = CollectingSink(), CollectingSink()
        async with (
            open_runtime(tmp_path / "a", engine, sink=first) as here,
            open_runtime(tmp_path / "b", engine, sink=second, may_act=lambda: False) as there,
        ):
            attempt = await here.launch(launch)
            before = engine.inspect(container_name(launch))
            assert (await here.launch(launch)).identifier == attempt.identifier
            again = await there.launch(replace(launch, policy="another", planned=5.0))
            ends = [await here.wait(attempt), await there.wait(again)]
            after = engine.inspect(container_name(launch))
            there.forget(launch)
            with pytest.raises(LaunchError, match="has ended"):
                await there.launch(launch)
        assert [end.exit_code for end in ends] == [3, 3]
        assert first.texts(launch) == second.texts(launch) == ["once"]
        assert (before["Id"], before["State"]["StartedAt"]) == (after["Id"], after["State"]["StartedAt"])

        async with open_runtime(tmp_path / "c", engine, may_act=lambda: False) as later:
            later._running.by_attempt.clear()  # as if it had not adopted the container
            assert (await later.wait(await later.launch(launch))).exit_code == 3
        assert engine.inspect(container_name(launch))["State"]["StartedAt"] == before["State"]["StartedAt"]

    asyncio.run(main())


# -- secrets, limits and devices --------------------------------------------------------------


@pytest.mark.parametrize("user", ["", "worker", "1000", "1000:1000"])
def test_a_secret_is_a_file_that_only_the_images_user_can_read(
    engine: Daemon, tmp_path: Path, user: str
) -> None:
    changes = [f"USER {user}"] if user else []
    image = engine.commit_image(f"user:{user.replace(':', '-') or 'root'}", *changes)
    script = "id -u; cat $TOKEN_FILE; stat -c %a $TOKEN_FILE; env | grep -c ^TOKEN="
    launch = shell(script, image=image, secrets={"TOKEN": "sesame\n"}, env={"TOKEN": "sesame\n"})
    _, sink = run_alone(tmp_path, engine, launch)
    assert "sesame" not in json.dumps(engine.inspect(container_name(launch)))
    assert sink.texts(launch) == ["1000" if user else "0", "sesame", "400", "0"]
    assert not any("sesame" in file.read_text() for file in tmp_path.rglob("*") if file.is_file())


def test_a_container_has_limits_and_no_privileges(engine: Daemon, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("from the host")
    script = "grep CapEff /proc/self/status; df -m /dev/shm; cat /data/file; touch /data/x || echo read-only"

    async def main() -> None:
        sink = CollectingSink()
        rules = ContainerRules(mount_roots=[str(tmp_path)], most_memory_gb=0.25)
        async with open_runtime(tmp_path / "store", engine, sink=sink, rules=rules) as docker:
            mount = Mount(str(tmp_path / "data"), "/data", read_only=True)
            launch = shell(script, mounts=(mount,), shm_mb=256)
            await docker.wait(await docker.launch(launch))
            config = engine.inspect(container_name(launch))["HostConfig"]
        printed = "\n".join(sink.texts(launch))
        for expected in ("0000000000000000", "256", "from the host", "read-only"):
            assert expected in printed
        assert (config["Memory"], config["Privileged"]) == (256 * 1024 * 1024, False)

    asyncio.run(main())


@pytest.mark.parametrize("replaced", ["set", "set/inner"])
def test_a_directory_that_is_replaced_during_the_launch_is_mounted_as_it_was_checked(
    engine: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """Another job, which has the mount root mounted, replaces it by a link in the last moment."""
    data = tmp_path / "data"
    (data / "set" / "inner").mkdir(parents=True)
    (data / "set" / "inner" / "mine").touch()
    (data / "link").symlink_to("set/inner")
    mounts = (
        Mount(str(data / "set" / "inner"), "/direct"),
        Mount(str(data / "link"), "/link", read_only=True),
    )
    launch = shell("ls /direct /link; touch /direct/written; touch /link/x || echo read-only", mounts=mounts)
    start = container_start._start

    def attack(host: Host, launch: Launch) -> None:
        (data / replaced).rename(data / "aside")
        (data / replaced).symlink_to("/etc")
        start(host, launch)

    monkeypatch.setattr(container_start, "_start", attack)

    async def main() -> list[str]:
        sink, rules = CollectingSink(), ContainerRules(mount_roots=[str(data)])
        async with open_runtime(tmp_path / "store", engine, sink=sink, rules=rules) as docker:
            await run(docker, launch)
        return sink.texts(launch)

    printed = asyncio.run(main())
    assert [line for line in printed if "touch:" not in line] == [
        "/direct:",
        "mine",
        "",
        "/link:",
        "mine",
        "read-only",
    ]
    aside = data / "aside" / ("inner" if replaced == "set" else "")
    assert sorted(path.name for path in aside.iterdir()) == ["mine", "written"]
    assert not [name for name in os.listdir("/proc/self/fd") if _leads_below(name, data)], "all are closed"


def _leads_below(descriptor: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    except OSError:
        return False


def test_a_container_of_an_ended_worker_is_not_started(engine: Daemon, tmp_path: Path) -> None:
    """Its directories are those of a process that is gone, and another may have its number."""
    (tmp_path / "data" / "set").mkdir(parents=True)
    roots = [str(tmp_path / "data")]
    launch = make_launch("true", mounts=(Mount(str(tmp_path / "data" / "set"), "/data"),))

    def start(opened: OpenMounts, before_start: Callable[[], None]) -> None:
        host = Host(engine.settings())
        rules = ContainerRules(mount_roots=roots)
        ContainerStart(
            host, launch, "test", rules, lambda: True, lambda: None, before_start, lambda text: None, opened
        ).run()

    def die() -> None:
        raise KeyboardInterrupt

    dead = OpenMounts(roots, str(engine.socket))
    with pytest.raises(KeyboardInterrupt):
        start(dead, die)
    dead.close()
    reused = os.open("/", os.O_RDONLY)
    with pytest.raises(LaunchError, match="created by a worker that has ended"):
        start(OpenMounts(roots, str(engine.socket)), lambda: None)
    os.close(reused)
    [left] = engine.list_containers()
    assert not has_started(engine.inspect(left)), "adoption removes it later"


def test_a_container_sees_its_own_devices_and_no_others(
    new_engine: Callable[..., Daemon], tmp_path: Path
) -> None:
    """Docker passes a device request to NVIDIA's hook. The test's hook accepts it and adds no device."""
    hook = tmp_path / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\ncat > /dev/null\n")
    hook.chmod(0o755)
    engine = new_engine("nvidia", path_prefix=hook.parent)
    variables = ("ENV NVIDIA_VISIBLE_DEVICES=all", "ENV CUDA_VISIBLE_DEVICES=0,1,2,3")
    launch = make_launch("env", image=engine.commit_image("greedy:test", *variables))
    launch = replace(launch, devices=(Device("GPU-8f6d", "host", 2), Device("GPU-77aa", "host", 3)))
    _, sink = run_alone(tmp_path / "store", engine.settings(gpu_access="nvidia"), launch)
    assert {line for line in sink.texts(launch) if "VISIBLE_DEVICES" in line} == {
        "NVIDIA_VISIBLE_DEVICES=GPU-8f6d,GPU-77aa",
        "CUDA_VISIBLE_DEVICES=GPU-8f6d,GPU-77aa",
    }
    [request] = engine.inspect(container_name(launch))["HostConfig"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", ["GPU-8f6d", "GPU-77aa"])
