"""Images from a private registry: pulled when they should be, with words about it, or with a clear reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import Heard, host_of, launch_of, run, serving
from docker.errors import ImageNotFound
from docker_hosts.daemon import Daemon
from docker_hosts.registry import Registry

from gpu_flows.runtimes.base import Launch, LaunchError, Login, NotWanted
from gpu_flows.runtimes.docker import images

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow


@pytest.fixture
def image(engine: Daemon, registry: Registry) -> Iterator[str]:
    """One that only the registry has."""
    name = registry.push(engine.client(), "bare:test", "team/bare:1")
    yield name
    forget(engine, name)


def forget(engine: Daemon, name: str) -> None:
    for each in engine.client().containers.list(all=True, ignore_removed=True):
        each.remove(force=True)
    try:
        engine.client().images.remove(name, force=True)
    except ImageNotFound:
        pass


def login(registry: Registry, password: str = "") -> Login:
    return Login(registry.username, password or registry.password, registry.address)


def tried(engine: Daemon, folder: Path, launch: Launch) -> tuple[int | None, list[str]]:
    """How it ended, and what was said about it."""

    async def main() -> tuple[int | None, list[str]]:
        sink = Heard()
        async with serving(folder, host_of(engine), sink=sink) as docker:
            end = await run(docker, launch)
        return end.exit_code, [line.text for line in sink.lines if line.ours]

    return asyncio.run(main())


def test_a_missing_image_is_pulled_once_with_the_registrys_password(
    engine: Daemon, registry: Registry, image: str, tmp_path: Path
) -> None:
    code, said = tried(engine, tmp_path / "1", launch_of("true", image=image, login=login(registry)))
    assert code == 0
    assert said[0] == f"Pulling image {image} on host host."
    assert said[-1].startswith(f"Pulled image {image} in ")
    code, said = tried(engine, tmp_path / "2", launch_of("true", image=image))
    assert (code, said) == (0, [])  # it is there


def test_always_asks_the_registry_and_never_does_not(
    engine: Daemon, registry: Registry, image: str, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError, match="never to be pulled"):
        tried(engine, tmp_path / "1", launch_of("true", image=image, pull="never", login=login(registry)))
    always = {"image": image, "pull": "always", "login": login(registry)}
    for folder in ("2", "3"):
        code, said = tried(engine, tmp_path / folder, launch_of("true", **always))
        assert code == 0
        assert [word.split()[0] for word in said] == ["Pulling", "Pulled"]
    assert tried(engine, tmp_path / "4", launch_of("true", image=image, pull="never"))[0] == 0


@pytest.mark.parametrize(("password", "name"), [("wrong", "team/bare:1"), ("", "team/nothing:1")])
def test_what_cannot_be_pulled_is_told_with_a_way_out(
    engine: Daemon, registry: Registry, image: str, tmp_path: Path, password: str, name: str
) -> None:
    wanted = f"{registry.address}/{name}"
    with pytest.raises(LaunchError, match="cannot pull the image") as error:
        tried(engine, tmp_path, launch_of("true", image=wanted, login=login(registry, password)))
    assert wanted in str(error.value)
    assert "registry_credentials" in str(error.value)
    assert ("auth" if password else "manifest unknown") in str(error.value)


def test_without_a_password_the_registry_refuses(
    engine: Daemon, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))  # nor with one of the person who runs the tests
    with pytest.raises(LaunchError, match="auth"):
        tried(engine, tmp_path / "attempt_store", launch_of("true", image=image))


def test_a_registry_that_is_away_is_the_registrys_fault(engine: Daemon, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"host host cannot pull the image.*refused"):
        tried(engine, tmp_path, launch_of("true", image="127.0.0.1:9/team/bare:1"))


def test_a_pull_that_is_no_longer_wanted_is_given_up(
    engine: Daemon, registry: Registry, image: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving(tmp_path, host_of(engine)) as docker:
            with pytest.raises(NotWanted, match="pulled"):
                await docker.launch(launch_of("true", image=image, login=login(registry)), lambda: False)

    asyncio.run(main())
    assert not engine.client().containers.list(all=True, ignore_removed=True)


def test_progress_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SAY_EVERY_S", 0.0)
    megabyte = 1024 * 1024
    progress = [
        {"status": "Downloading", "id": "a", "progressDetail": {"current": megabyte, "total": 4 * megabyte}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 0, "total": 2 * megabyte}},
        {"status": "Download complete", "id": "a"},
    ]
    said: list[str] = []
    images._follow(progress, "x", lambda: True, said.append)
    assert said == ["Pulling x: 1 of 4 MB.", "Pulling x: 1 of 6 MB.", "Pulling x: 4 of 6 MB."]
