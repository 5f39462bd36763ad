"""Pulling images from a private registry: when it happens, its progress messages and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import CollectingSink, make_launch, open_runtime, run_alone
from docker.errors import ImageNotFound
from docker_hosts.daemon import Daemon
from docker_hosts.registry import Registry

from gpu_flows.runtimes.base import Launch, LaunchCancelled, LaunchError, Login
from gpu_flows.runtimes.docker import images

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow


@pytest.fixture
def image(engine: Daemon, registry: Registry) -> Iterator[str]:
    """An image that only the registry has."""
    name = registry.push(engine.client(), "bare:test", "team/bare:1")
    yield name
    remove_image(engine, name)


def remove_image(engine: Daemon, name: str) -> None:
    for container in engine.client().containers.list(all=True, ignore_removed=True):
        container.remove(force=True)
    try:
        engine.client().images.remove(name, force=True)
    except ImageNotFound:
        pass


def login(registry: Registry, password: str = "") -> Login:
    return Login(registry.username, password or registry.password, registry.address)


def try_launch(engine: Daemon, folder: Path, launch: Launch) -> tuple[int | None, list[str]]:
    """Return the exit code and the worker's messages about the launch."""
    end, sink = run_alone(folder, engine, launch)
    return end.exit_code, [line.text for line in sink.lines if line.from_worker]


def test_a_missing_image_is_pulled_once_with_the_login(
    engine: Daemon, registry: Registry, image: str, tmp_path: Path
) -> None:
    code, messages = try_launch(
        engine, tmp_path / "1", make_launch("true", image=image, login=login(registry))
    )
    assert code == 0
    assert messages[0] == f"Pulling image {image} on host host."
    assert messages[-1].startswith(f"Pulled image {image} in ")
    code, messages = try_launch(engine, tmp_path / "2", make_launch("true", image=image))
    assert (code, messages) == (0, [])  # the host has the image


def test_pull_always_and_pull_never(engine: Daemon, registry: Registry, image: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="pull is 'never'"):
        try_launch(
            engine, tmp_path / "1", make_launch("true", image=image, pull="never", login=login(registry))
        )
    always = {"image": image, "pull": "always", "login": login(registry)}
    for folder in ("2", "3"):
        code, messages = try_launch(engine, tmp_path / folder, make_launch("true", **always))
        assert code == 0
        assert [message.split()[0] for message in messages] == ["Pulling", "Pulled"]
    assert try_launch(engine, tmp_path / "4", make_launch("true", image=image, pull="never"))[0] == 0


@pytest.mark.parametrize(("password", "name"), [("wrong", "team/bare:1"), ("", "team/nothing:1")])
def test_a_failed_pull_names_the_image_and_the_fix(
    engine: Daemon, registry: Registry, image: str, tmp_path: Path, password: str, name: str
) -> None:
    wanted = f"{registry.address}/{name}"
    with pytest.raises(LaunchError, match="cannot pull the image") as error:
        try_launch(engine, tmp_path, make_launch("true", image=wanted, login=login(registry, password)))
    assert wanted in str(error.value)
    assert "registry_credentials" in str(error.value)
    assert ("auth" if password else "manifest unknown") in str(error.value)


def test_a_pull_without_a_login_is_refused(
    engine: Daemon, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))  # without the logins of the user who runs the tests
    with pytest.raises(LaunchError, match="auth"):
        try_launch(engine, tmp_path / "attempt_store", make_launch("true", image=image))


def test_credentials_are_not_sent_to_another_registry(
    engine: Daemon, registry: Registry, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    elsewhere = Login(registry.username, registry.password, "https://registry.example.com/v2/")
    sink = CollectingSink()

    async def main() -> None:
        async with open_runtime(tmp_path / "attempts", engine, sink=sink) as docker:
            with pytest.raises(LaunchError, match="auth"):
                await docker.launch(make_launch("true", image=image, login=elsewhere))

    asyncio.run(main())
    notes = [line.text for line in sink.lines]
    assert any("are for registry.example.com and are not sent to" in note for note in notes), notes


def test_an_unreachable_registry_is_not_an_unreachable_host(engine: Daemon, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"host host cannot pull the image.*refused"):
        try_launch(engine, tmp_path, make_launch("true", image="127.0.0.1:9/team/bare:1"))


def test_a_cancelled_pull_stops(engine: Daemon, registry: Registry, image: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runtime(tmp_path, engine) as docker:
            with pytest.raises(LaunchCancelled, match="pulled"):
                await docker.launch(make_launch("true", image=image, login=login(registry)), lambda: False)

    asyncio.run(main())
    assert not engine.client().containers.list(all=True, ignore_removed=True)


def test_progress_is_reported_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PROGRESS_INTERVAL_S", 0.0)
    megabyte = 1024 * 1024
    progress = [
        {"status": "Downloading", "id": "a", "progressDetail": {"current": megabyte, "total": 4 * megabyte}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 0, "total": 2 * megabyte}},
        {"status": "Download complete", "id": "a"},
    ]
    messages: list[str] = []
    images._follow(progress, "x", lambda: True, messages.append)
    assert messages == ["Pulling x: 1 of 4 MB.", "Pulling x: 1 of 6 MB.", "Pulling x: 4 of 6 MB."]
