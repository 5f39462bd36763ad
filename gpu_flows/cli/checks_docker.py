"""The doctor's checks of Docker: whether the pool's hosts answer, and have what jobs in containers need.

Only a pool whose cluster block says 'docker' needs any of it.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpu_flows.cli.checkup import ERROR, INFO, OK, WARN, Finding, Surroundings
from gpu_flows.cli.prefect_settings import setting
from gpu_flows.cli.server import CLUSTER, NotFound

if TYPE_CHECKING:  # these load Prefect, which takes seconds: not for a pool without Docker
    from gpu_flows.blocks import ContainerRules, DockerHost, GpuCluster
    from gpu_flows.runtimes.docker.host import Host

CALL_S, PATIENCE_S = 5.0, 20.0
OLDEST_API = (1, 41)  # of Docker 20.10
CLOCKS_APART_S = 5.0
HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def docker(around: Surroundings) -> Iterator[Finding]:
    """Whether the engines that the pool's block names answer; for a pool without, whether there is one."""
    data = _block(around)
    if data.get("runtime") != "docker" and not data.get("hosts"):
        yield _engine_here()
        return
    from gpu_flows.blocks import GpuCluster

    try:
        cluster = GpuCluster(**{key: value for key, value in data.items() if key != "block_type_slug"})
    except ValueError as error:
        yield Finding(
            ERROR, f"The pool's {CLUSTER} block makes no sense: {told(error)}.", "Correct it in the UI."
        )
        return
    for seen in look_at(cluster.docker_hosts):
        yield from _host(seen, cluster)
    here = any(host.is_here for host in cluster.docker_hosts)
    if missing := [root for root in cluster.containers.mount_roots if here and not Path(root).is_dir()]:
        what = f"Jobs may mount {', '.join(missing)}, but this machine has no such folder."
        yield Finding(WARN, what, "Make it, or correct the mount roots in the cluster block.")


def _block(around: Surroundings) -> dict[str, Any]:
    """What the pool's cluster block says; nothing if there is none, or no server to ask."""
    asked = around.server_if_any
    try:
        found = asked.block(CLUSTER, asked.block_name(around.pool, "cluster")) if asked else None
    except NotFound:
        return {}
    return dict(found["data"]) if found else {}


def _engine_here() -> Finding:
    try:
        import docker as sdk

        engine = sdk.from_env(timeout=int(CALL_S)).version().get("Version", "?")
    except Exception as error:  # absent, not running, not permitted: the SDK has many names for it
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        return Finding(INFO, f"No Docker engine answers ({why}). Jobs that run as processes need none.")
    more = "this pool runs jobs as processes; the runtime 'docker' in its cluster block would use it"
    return Finding(OK, f"Docker engine {engine} answers; {more}.")


# -- asking the hosts -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A host, and what it says of itself or why it says nothing."""

    host: Host
    version: str = ""
    trouble: str = ""


def look_at(hosts: Sequence[DockerHost]) -> list[Seen]:
    """All at once, each for a few seconds: one that is away keeps no other waiting."""
    from docker.errors import APIError

    from gpu_flows.runtimes.docker.host import Host, HostUnreachable

    answers: queue.Queue[tuple[int, Seen]] = queue.Queue()
    opened = [Host(settings) for settings in hosts]

    def ask(number: int, host: Host) -> None:
        try:
            said = host.call_blocking(lambda api: api.version(), CALL_S)
            answers.put((number, Seen(host, str(said.get("Version", "?")))))
        except (HostUnreachable, APIError) as error:
            answers.put((number, Seen(host, trouble=str(error))))

    for number, host in enumerate(opened):
        threading.Thread(target=ask, args=(number, host), daemon=True).start()
    found = {number: Seen(host, trouble="no answer") for number, host in enumerate(opened)}
    deadline = time.monotonic() + PATIENCE_S
    for _ in opened:
        try:
            number, seen = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[number] = seen
    return [found[number] for number in sorted(found)]


def place(settings: DockerHost) -> str:
    """`gpu2 (ssh://lab@gpu2)`."""
    return f"{settings.name} ({settings.url or 'this machine'})"


def told(error: ValueError) -> str:
    """What is wrong with a block or a host, on one line."""
    errors = getattr(error, "errors", None)  # of pydantic
    if errors is None:
        return str(error).rstrip(".")
    said = (": ".join([*map(str, each["loc"]), str(each["msg"])]) for each in errors())
    return "; ".join(each.replace("Value error, ", "") for each in said).rstrip(".")


# -- what is found ----------------------------------------------------------------------------


def _host(seen: Seen, cluster: GpuCluster) -> Iterator[Finding]:
    settings, where = seen.host.settings, place(seen.host.settings)
    if settings.url.startswith("tcp:") and not settings.tls_directory:
        what = f"Docker host {where} is reached without TLS: whoever reaches that port is root there."
        fix = "Make it listen with --tlsverify and set the TLS directory in the cluster block, or use ssh://."
        yield Finding(WARN, what, fix)
    if seen.trouble:
        what = f"Docker host {where} does not answer this machine: {seen.trouble.rstrip('.')}."
        yield Finding(ERROR, what, _how_to_reach(settings, seen.trouble))
        return
    info = seen.host.info()
    size = f"{info.get('NCPU', '?')} CPUs, {info.get('MemTotal', 0) / 2**30:.0f} GB"
    yield Finding(OK, f"Docker host {where} answers: Docker {seen.version}, {size}.")
    spoken = tuple(map(int, seen.host.api(CALL_S).api_version.split(".")[:2]))
    if spoken < OLDEST_API:
        yield Finding(WARN, f"Its Docker {seen.version} is older than 20.10.", "Upgrade it.")
    if not seen.host.has_init():
        what = f"Host {settings.name} has no docker-init, so nobody reaps what jobs leave behind as zombies."
        yield Finding(WARN, what, "Install it there: Debian's package tini, or Docker's own packages.")
    yield from _clock(settings, info)
    yield from _gpus(seen.host, cluster)
    yield from _network(seen.host, cluster.containers)


def _how_to_reach(settings: DockerHost, trouble: str) -> str:
    if "permission denied" in trouble.lower():
        return "Let this user in: sudo usermod -aG docker $USER, then log in again."
    if settings.url.startswith("ssh:"):
        machine = settings.url.removeprefix("ssh://")
        return f"This has to work without a password: ssh {machine} docker version"
    if settings.url.startswith("tcp:"):
        folder = f" and the certificates in {settings.tls_directory}" if settings.tls_directory else ""
        return f"Check that dockerd listens there{folder}."
    return "Start it there (sudo systemctl start docker), or correct its address in the cluster block."


def _clock(settings: DockerHost, info: dict[str, Any]) -> Iterator[Finding]:
    """Lines of output and ends of jobs carry the host's time."""
    try:
        apart = datetime.fromisoformat(str(info["SystemTime"])[:26].rstrip("Z") + "+00:00")
    except (KeyError, ValueError):
        return
    seconds = apart.timestamp() - time.time()
    if abs(seconds) > CLOCKS_APART_S:
        fix = "Synchronise it, for example with chrony or systemd-timesyncd."
        yield Finding(WARN, f"The clock of host {settings.name} is {seconds:+.0f} s off.", fix)


def _gpus(host: Host, cluster: GpuCluster) -> Iterator[Finding]:
    name, declared = host.name, host.settings.gpus
    if declared:
        yield Finding(OK, f"Host {name} has {declared} declared GPUs ({host.settings.model}).")
        return
    if not cluster.hosts and _simulated_here(cluster):
        yield Finding(OK, f"Host {name} serves the declared cluster: its GPUs are simulated.")
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
        yield _probe_image(host, cluster.containers.probe_image)


def _simulated_here(cluster: GpuCluster) -> bool:
    from gpu_flows.devices.nvml import find_nvml

    return cluster.devices == "declared" or (cluster.devices == "auto" and bool(find_nvml()))


def _probe_image(host: Host, image: str) -> Finding:
    from docker.errors import ImageNotFound

    try:
        host.call_blocking(lambda api: api.inspect_image(image), CALL_S)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        to = f"-H {host.settings.url} " if host.settings.url else ""
        return Finding(
            ERROR,
            f"Host {host.name} lacks the probe image {image!r}, by which its GPUs would be found.",
            f"docker {to}pull {image}; or build ours and send it: make image && docker save gpu-flows | "
            f"docker {to}load. Any image with Python 3 does.",
        )
    return Finding(OK, f"Host {host.name} has the probe image {image!r}.")


def _network(host: Host, rules: ContainerRules) -> Iterator[Finding]:
    """Whether the network is there, and whether flows in containers can reach the Prefect server over it."""
    from docker.errors import NotFound as NoSuch

    to = f"-H {host.settings.url} " if host.settings.url else ""
    try:
        host.call_blocking(lambda api: api.inspect_network(rules.network), CALL_S)
    except NoSuch:
        fix = f"docker {to}network create {rules.network}"
        yield Finding(ERROR, f"Host {host.name} has no network {rules.network!r}.", fix)
        return
    address = urlsplit(rules.api_url or setting("PREFECT_API_URL"))
    if rules.api_url or address.hostname not in HERE:
        return
    fix = (
        "Let it listen on an address that containers reach (prefect server start --host 0.0.0.0, with a "
        "password), or set the Prefect API address in the cluster block. Bare containers need none."
    )
    if not host.settings.is_here:
        what = (
            f"Flows in containers on {host.name} cannot reach the Prefect server: {address.geturl()} is here."
        )
        yield Finding(WARN, what, fix)
    elif (gateway := _gateway(host)) and not _listens(gateway, address.port or 80):
        what = f"Flows in containers on {host.name} cannot reach the Prefect server: it listens on"
        yield Finding(WARN, f"{what} {address.hostname} only, not on {gateway}.", fix)


def _gateway(host: Host) -> str:
    """This machine's address, as the host's containers see it."""
    from docker.errors import APIError

    from gpu_flows.runtimes.docker.host import HostUnreachable

    try:
        found = host.call_blocking(lambda api: api.inspect_network("bridge"), CALL_S)
        return str(found["IPAM"]["Config"][0]["Gateway"])
    except (APIError, HostUnreachable, KeyError, IndexError, TypeError):
        return ""


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
