"""Checks of a pool's Docker hosts: whether they answer, and have what jobs in containers need.

They apply only to a pool whose cluster block has the runtime 'docker'.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpu_flows.cli.docker_probe import (
    CALL_TIMEOUT_S,
    ProbedHost,
    describe_error,
    describe_host,
    probe_hosts,
)
from gpu_flows.cli.doctor.checks import ERROR, INFO, OK, WARN, CheckContext, Finding
from gpu_flows.cli.prefect_client import CLUSTER_BLOCK, NotFound
from gpu_flows.cli.prefect_settings import read_setting

if TYPE_CHECKING:  # these load Prefect, which takes seconds: not for a pool without Docker
    from gpu_flows.blocks import ContainerRules, DockerHost, GpuCluster
    from gpu_flows.runtimes.docker.host import Host

OLDEST_API = (1, 41)  # of Docker 20.10
MOST_CLOCK_OFFSET_S = 5.0
LOCAL_ADDRESSES = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def check_docker(context: CheckContext) -> Iterator[Finding]:
    """Whether the pool's Docker hosts answer and fit; without any, whether this machine has an engine."""
    data = _read_cluster_block(context)
    if data.get("runtime") != "docker" and not data.get("hosts"):
        yield _check_local_engine()
        return
    from gpu_flows.blocks import GpuCluster

    try:
        cluster = GpuCluster(**{key: value for key, value in data.items() if key != "block_type_slug"})
    except ValueError as error:
        what = f"The pool's {CLUSTER_BLOCK} block is not valid: {describe_error(error)}."
        yield Finding(ERROR, what, "Correct it in the UI.")
        return
    for probed in probe_hosts(cluster.docker_hosts):
        yield from _check_host(probed, cluster)
    is_here = any(host.is_here for host in cluster.docker_hosts)
    roots = cluster.containers.mount_roots if is_here else []
    if missing := [root for root in roots if not Path(root).is_dir()]:
        what = f"Jobs may mount {', '.join(missing)}, but this machine has no such folder."
        yield Finding(WARN, what, "Create it, or correct the mount roots in the cluster block.")


def _read_cluster_block(context: CheckContext) -> dict[str, Any]:
    """The data of the pool's cluster block; empty if there is none, or no server."""
    client = context.client_or_none
    try:
        return client.read_pool_block(context.pool, "cluster", CLUSTER_BLOCK) if client else {}
    except NotFound:
        return {}


def _check_local_engine() -> Finding:
    try:
        import docker

        engine = docker.from_env(timeout=int(CALL_TIMEOUT_S)).version().get("Version", "?")
    except Exception as error:  # the SDK has many errors for: absent, not running, not permitted
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        return Finding(INFO, f"No Docker engine answers ({why}). Jobs that run as processes need none.")
    unused = "this pool runs jobs as processes; the runtime 'docker' in its cluster block would use it"
    return Finding(OK, f"Docker engine {engine} answers; {unused}.")


def _check_host(probed: ProbedHost, cluster: GpuCluster) -> Iterator[Finding]:
    host, settings = probed.host, probed.host.settings
    name = describe_host(settings)
    if settings.url.startswith("tcp:") and not settings.tls_directory:
        what = f"Docker host {name} is used without TLS: anyone who reaches that port is root there."
        fix = "Make it listen with --tlsverify and set the TLS directory in the cluster block, or use ssh://."
        yield Finding(WARN, what, fix)
    if probed.error:
        what = f"Docker host {name} does not answer this machine: {probed.error.rstrip('.')}."
        yield Finding(ERROR, what, _explain_how_to_reach(settings, probed.error))
        return
    info = host.info()
    size = f"{info.get('NCPU', '?')} CPUs, {info.get('MemTotal', 0) / 2**30:.0f} GB"
    yield Finding(OK, f"Docker host {name} answers: Docker {probed.version}, {size}.")
    api = tuple(map(int, host.api(CALL_TIMEOUT_S).api_version.split(".")[:2]))
    if api < OLDEST_API:
        yield Finding(WARN, f"Its Docker {probed.version} is older than 20.10.", "Upgrade it.")
    if not host.has_init():
        what = f"Host {settings.name} has no docker-init, so ended child processes of jobs stay as zombies."
        yield Finding(WARN, what, "Install it there: Debian's package tini, or Docker's own packages.")
    yield from _check_clock(settings, info)
    yield from _check_gpus(host, cluster)
    yield from _check_network(host, cluster.containers)


def _explain_how_to_reach(settings: DockerHost, error: str) -> str:
    if "permission denied" in error.lower():
        return "Add this user to the group docker: sudo usermod -aG docker $USER, then log in again."
    if settings.url.startswith("ssh:"):
        machine = settings.url.removeprefix("ssh://")
        return f"This must work without a password: ssh {machine} docker version"
    if settings.url.startswith("tcp:"):
        folder = f" and the certificates in {settings.tls_directory}" if settings.tls_directory else ""
        return f"Check that dockerd listens there{folder}."
    return "Start it there (sudo systemctl start docker), or correct its address in the cluster block."


def _check_clock(settings: DockerHost, info: dict[str, Any]) -> Iterator[Finding]:
    """Whether the host's clock is right. Lines of output and ends of jobs carry its time."""
    try:
        clock = datetime.fromisoformat(str(info["SystemTime"])[:26].rstrip("Z") + "+00:00")
    except (KeyError, ValueError):
        return
    offset = clock.timestamp() - time.time()
    if abs(offset) > MOST_CLOCK_OFFSET_S:
        fix = "Synchronise it, for example with chrony or systemd-timesyncd."
        yield Finding(WARN, f"The clock of host {settings.name} is {offset:+.0f} s off.", fix)


def _check_gpus(host: Host, cluster: GpuCluster) -> Iterator[Finding]:
    name, declared = host.name, host.settings.gpus
    if declared:
        yield Finding(OK, f"Host {name} has {declared} declared GPUs ({host.settings.model}).")
        return
    if not cluster.hosts and _is_simulated(cluster):
        yield Finding(OK, f"Host {name} runs the jobs of the declared cluster: its GPUs are simulated.")
        return
    access = host.gpu_access()
    if access == "variable" and host.settings.gpu_access == "auto":
        yield Finding(
            WARN,
            f"Host {name} has no way to give containers GPUs: neither CDI devices nor NVIDIA's runtime.",
            "Install the NVIDIA Container Toolkit there: nvidia-ctk runtime configure --runtime=docker, then "
            "restart Docker. On a host without GPUs, declare some: gpus=N.",
        )
    else:
        how = {"nvidia": "a device request", "cdi": "CDI names", "variable": "NVIDIA_VISIBLE_DEVICES alone"}
        yield Finding(OK, f"Host {name} gives containers their GPUs by {how[access]}.")
    if cluster.hosts:
        yield _check_probe_image(host, cluster.containers.probe_image)


def _is_simulated(cluster: GpuCluster) -> bool:
    from gpu_flows.devices.nvml import find_nvml

    return cluster.devices == "declared" or (cluster.devices == "auto" and bool(find_nvml()))


def _check_probe_image(host: Host, image: str) -> Finding:
    from docker.errors import ImageNotFound

    try:
        host.call_blocking(lambda api: api.inspect_image(image), CALL_TIMEOUT_S)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        docker = _write_docker_command(host)
        return Finding(
            ERROR,
            f"Host {host.name} lacks the probe image {image!r}, which finds its GPUs.",
            f"{docker} pull {image}; or build ours and send it: make image && docker save gpu-flows | "
            f"{docker} load. Any image with Python 3 works.",
        )
    return Finding(OK, f"Host {host.name} has the probe image {image!r}.")


def _check_network(host: Host, rules: ContainerRules) -> Iterator[Finding]:
    """Whether the network exists, and whether flows in containers can reach the Prefect server over it."""
    from docker.errors import NotFound as NetworkNotFound

    try:
        host.call_blocking(lambda api: api.inspect_network(rules.network), CALL_TIMEOUT_S)
    except NetworkNotFound:
        fix = f"{_write_docker_command(host)} network create {rules.network}"
        yield Finding(ERROR, f"Host {host.name} has no network {rules.network!r}.", fix)
        return
    address = urlsplit(rules.api_url or read_setting("PREFECT_API_URL"))
    if rules.api_url or address.hostname not in LOCAL_ADDRESSES:
        return
    what = f"Flows in containers on {host.name} cannot reach the Prefect server: "
    fix = (
        "Let it listen on an address that containers reach (prefect server start --host 0.0.0.0, with a "
        "password), or set the Prefect API address in the cluster block. Bare containers need none."
    )
    if not host.settings.is_here:
        yield Finding(WARN, f"{what}{address.geturl()} is an address of this machine only.", fix)
    elif (gateway := _find_gateway(host)) and not _accepts_connections(gateway, address.port or 80):
        yield Finding(WARN, f"{what}it listens on {address.hostname} only, not on {gateway}.", fix)


def _write_docker_command(host: Host) -> str:
    return f"docker -H {host.settings.url}" if host.settings.url else "docker"


def _find_gateway(host: Host) -> str:
    """The address of this machine in the network of the host's containers; empty if unknown."""
    from docker.errors import APIError

    from gpu_flows.runtimes.docker.host import HostUnreachable

    try:
        network = host.call_blocking(lambda api: api.inspect_network("bridge"), CALL_TIMEOUT_S)
        return str(network["IPAM"]["Config"][0]["Gateway"])
    except (APIError, HostUnreachable, KeyError, IndexError, TypeError):
        return ""


def _accepts_connections(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
