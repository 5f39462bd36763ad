"""The ways to reach a Docker host: TLS, plain TCP and ssh."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from containers import make_launch, open_runtime, run, wait_for
from docker_hosts.certificates import make_certificates
from docker_hosts.daemon import Daemon

from gpu_flows.blocks import DockerHost
from gpu_flows.runtimes.docker import host_health

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_engine")]


async def first_trouble(folder: Path, host: DockerHost) -> str:
    """Return the result of the first health check. If the host is up, a container must run on it."""
    hosts: list[Any] = []
    async with open_runtime(folder, host, on_host=lambda *change: hosts.append(change)) as docker:
        await wait_for(lambda: hosts, "it was checked")
        if not hosts[0][1]:
            assert (await run(docker, make_launch("true"))).exit_code == 0
        return str(hosts[0][1])


def test_a_host_with_tls_accepts_only_clients_of_its_authority(
    new_engine: Callable[..., Daemon], tmp_path: Path
) -> None:
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
        wrong_client = host(right.ca, other.cert, other.key)
        assert "does not answer" in await first_trouble(tmp_path / "3", wrong_client)
        no_files = good.model_copy(update={"tls_directory": str(tmp_path)})
        assert "certificate" in await first_trouble(tmp_path / "4", no_files)

    asyncio.run(main())


def test_plain_tcp_must_be_allowed_explicitly(new_engine: Callable[..., Daemon], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="root on the machine"):
        DockerHost(name="host", url="tcp://10.0.0.1:2375")
    engine = new_engine(tcp=True)
    host = DockerHost(name="host", url=engine.tcp_url, insecure=True, gpus=4)
    assert asyncio.run(first_trouble(tmp_path, host)) == ""


@pytest.mark.skipif(shutil.which("docker") is None, reason="Not installed: the docker command.")
def test_a_host_over_ssh(engine: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"

    def replace_ssh(script: str) -> None:
        ssh.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{script}\n')
        ssh.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    host = DockerHost(name="host", url="ssh://me@gpu1:2222", gpus=4)
    replace_ssh(f"exec docker -H {engine.url} system dial-stdio")
    assert asyncio.run(first_trouble(tmp_path / "1", host)) == ""
    [call, *_] = (tmp_path / "calls").read_text().splitlines()
    assert call.endswith("-l me -p 2222 -- gpu1 docker system dial-stdio")
    replace_ssh("echo 'me@gpu1: Permission denied (publickey).' >&2; exit 255")
    assert "Permission denied" in asyncio.run(first_trouble(tmp_path / "2", host))
    replace_ssh("exec sleep 30")
    monkeypatch.setattr(host_health, "HEALTH_CHECK_S", 0.5)
    assert "timed out" in asyncio.run(first_trouble(tmp_path / "3", host))
