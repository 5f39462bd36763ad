"""Which containers a runtime adopts and removes, and what changes of its hosts do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from containers import CollectingSink, make_launch, open_runtime, run, shell, wait_for
from docker.errors import NotFound
from docker_hosts.daemon import Daemon

from gpu_flows.blocks import ContainerRules
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch
from gpu_flows.runtimes.docker.container_spec import container_labels, container_name, create_arguments
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.runtimes.docker.mounts import OpenMounts
from gpu_flows.runtimes.docker.runtime import DockerRuntime

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_engine")]


def create(engine: Daemon, launch: Launch, installation: str = "test") -> str:
    """Create a container as a worker does, and return its id."""
    api, host = engine.client().api, Host(engine.settings())
    arguments = create_arguments(api, launch, installation, host, ContainerRules(), OpenMounts((), ""))
    return str(api.create_container(**arguments)["Id"])


def test_only_our_containers_that_are_no_longer_needed_are_removed(engine: Daemon, tmp_path: Path) -> None:
    client = engine.client()

    async def main() -> None:
        async with open_runtime(tmp_path, engine, rules=ContainerRules(keep_seconds=0)) as docker:
            # Foreign ones: without labels, with labels of their image, and of another installation.
            client.containers.run("bare:test", "true", name="gf-looks-like-ours-1", detach=True).wait()
            labels = container_labels(make_launch("true"), "test")
            changes = [f"LABEL {key}={json.dumps(value)}" for key, value in labels.items()]
            forged = engine.commit_image("forged:test", *changes)
            client.containers.run(forged, "true", name="forged", detach=True).wait()
            client.containers.run(forged, "sleep 600", name="gf-forged-1", detach=True)
            other = make_launch("sleep", "600")
            client.api.start(create(engine, other, "other"))
            # Ours: one that has ended, one that never started, and one that runs after its attempt ended.
            await run(docker, make_launch("true"))
            create(engine, make_launch("true"))
            ended = make_launch("sleep", "600")
            docker._attempt_store.create(ended)
            docker._attempt_store.mark_ended(ended)
            client.api.start(create(engine, ended))
            # Ours, and it runs.
            running = make_launch("sleep", "600")
            await docker.launch(running)
            still_running = {"gf-forged-1", container_name(other), container_name(running)}
            kept = {"gf-looks-like-ours-1", "forged", *still_running}
            await wait_for(lambda: set(engine.list_containers()) == kept, f"{kept} are left")
            await asyncio.sleep(1.5)
            assert set(engine.list_containers()) == kept
        for name in still_running:
            assert client.containers.get(name).status == "running"

    asyncio.run(main())


def test_the_late_start_of_a_worker_that_lost_its_lease_fails(engine: Daemon, tmp_path: Path) -> None:
    """It has created the container, and its request to start it is still on its way."""
    client = engine.client()

    async def main() -> None:
        unstarted, started = make_launch("sleep", "600"), make_launch("sleep", "600")
        late = create(engine, unstarted)
        client.api.start(create(engine, started))
        async with open_runtime(tmp_path, engine) as docker:
            await docker.find()
            assert list(docker._running.by_attempt) == [started.id]
            with pytest.raises(NotFound):
                client.api.start(late)
            late = create(engine, make_launch("sleep", "600"))  # the request to create it was late
            await wait_for(
                lambda: set(engine.list_containers()) == {container_name(started)}, "it is removed"
            )

    asyncio.run(main())


def test_an_ended_container_is_kept_for_a_while(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runtime(tmp_path, engine, rules=ContainerRules(keep_seconds=12)) as docker:
            launch = shell("echo look; sleep 13")  # longer than it is kept: its end counts, not its output
            await run(docker, launch)
            await asyncio.sleep(1)
            assert container_name(launch) in engine.list_containers()
            await wait_for(lambda: not engine.list_containers(), "it is removed")

    asyncio.run(main())


def test_two_installations_on_one_engine_ignore_each_other(engine: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        found: list[Any] = []
        rules = ContainerRules(keep_seconds=0)
        options = {"installation": "b", "rules": rules, "on_found": found.append}
        async with open_runtime(tmp_path / "a", engine, installation="a") as one:
            launch = make_launch("sleep", "3")
            attempt = await one.launch(launch)
            async with open_runtime(tmp_path / "b", engine, **options) as two:
                assert await two.find() == []
                assert (await one.wait(attempt)).exit_code == 0
                await asyncio.sleep(1)
        assert not found
        assert set(engine.list_containers()) == {container_name(launch)}

    asyncio.run(main())


# -- changes of the hosts ---------------------------------------------------------------------


def test_jobs_on_a_host_whose_settings_change_are_followed_to_their_end(
    engine: Daemon, tmp_path: Path
) -> None:
    async def main() -> None:
        hosts: list[tuple[str, str]] = []
        async with open_runtime(tmp_path, engine, on_host=lambda *change: hosts.append(change)) as docker:
            launch = make_launch("sleep", "3")
            attempt = await docker.launch(launch)
            changed = engine.settings(rack="another")
            docker.configure_hosts([changed], ContainerRules(), one_for_all=False)
            await wait_for(lambda: hosts == [("host", ""), ("host", "")], "the host is reported up again")
            assert (await run(docker, make_launch("true"))).exit_code == 0
            assert (await docker.wait(attempt)).exit_code == 0
            docker.forget(launch)

    asyncio.run(main())


def test_without_configured_hosts_no_attempt_counts_as_lost(engine: Daemon, tmp_path: Path) -> None:
    """The cluster block is invalid at first. When it is fixed, the running attempts are found."""

    async def main() -> None:
        found: list[Any] = []
        launch = make_launch("sleep", "20")
        async with open_runtime(tmp_path, engine) as before:
            await before.launch(launch)
        later = DockerRuntime(AttemptStore(tmp_path), "test", CollectingSink(), on_found=found.append)
        assert await later.find() == []
        later.configure_hosts([engine.settings()], ContainerRules(), one_for_all=False)
        await wait_for(lambda: [attempt.launch.id for attempt in found] == [launch.id], "it is found")
        assert found[0].alive
        await later.kill_all()
        await later.close()

    asyncio.run(main())
