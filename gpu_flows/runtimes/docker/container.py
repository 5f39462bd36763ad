"""From a launch to the words that Docker is told. Pure, but for the client's own spelling of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from docker import APIClient
from docker.types import DeviceRequest, LogConfig
from docker.types import Mount as DockerMount

from gpu_flows.blocks.docker import ContainerRules, DockerHost
from gpu_flows.checkpoints import contract
from gpu_flows.runtimes.attempt_store import restored, stored
from gpu_flows.runtimes.base import Container, Launch, LaunchError, Mount, device_environment
from gpu_flows.runtimes.docker.host import Access, Host
from gpu_flows.runtimes.docker.rules import OURS, resolve, tagged

SECRETS = f"{OURS}/secrets"
CHECKPOINTS = f"{OURS}/checkpoints"
INSTALLATION = "gpu-flows.installation"
_LAUNCH = "gpu-flows.launch"
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_HOST_NAME = "host.docker.internal"
_LOG_ROTATION = {"max-size": "10m", "max-file": "3"}
_MB = 1024 * 1024


# -- who it is --------------------------------------------------------------------------------


def name_of(launch: Launch) -> str:
    """The same for a second launch of the same attempt: Docker then says that the name is taken."""
    return f"gf-{launch.job.id}-{launch.attempt}"


def labels_of(launch: Launch, installation: str) -> dict[str, str]:
    return {
        INSTALLATION: installation,
        "gpu-flows.pool": launch.pool,
        "gpu-flows.run": launch.job.id,
        "gpu-flows.attempt": str(launch.attempt),
        "gpu-flows.devices": ",".join(device.id for device in launch.devices),
        _LAUNCH: stored(launch),
    }


def is_of(launch: Launch, installation: str, labels: Mapping[str, str]) -> bool:
    """Whether a container with these labels is this attempt, whoever planned it and why."""
    ours = labels_of(launch, installation)
    return all(labels.get(name) == value for name, value in ours.items() if name != _LAUNCH)


def launch_from(name: str, labels: Mapping[str, str]) -> Launch | None:
    """The launch that a container carries. None unless its name is what that launch would be called:
    an image can bring any labels along."""
    try:
        launch = restored(labels[_LAUNCH])
    except (ValueError, KeyError, TypeError):
        return None
    return launch if launch.container and name_of(launch) == name.lstrip("/") else None


def launch_seen(seen: Mapping[str, Any]) -> Launch | None:
    """The launch of a container as Docker lists it."""
    return launch_from((seen.get("Names") or [""])[0], seen.get("Labels") or {})


# -- what it gets -----------------------------------------------------------------------------


def arguments(
    api: APIClient,
    launch: Launch,
    installation: str,
    host: Host,
    rules: ContainerRules,
    ours: Sequence[Mount] = (),
) -> dict[str, Any]:
    """What `create_container` is called with. `ours` are mounts that no rule is needed for."""
    container = launch.container
    assert container is not None
    access = access_of(host, launch)
    env, extra_hosts = _environment(launch, container, host.settings, rules, access)
    memory = (container.memory_mb or round(1024 * rules.most_memory_gb)) * _MB
    mounts = [resolve(mount, rules.mount_roots, host.settings.is_here) for mount in container.mounts]
    mounts += ours
    return {
        "image": tagged(container.image),
        "name": name_of(launch),
        "command": list(launch.command) or None,
        "working_dir": launch.directory or None,
        "environment": env,
        "labels": labels_of(launch, installation),
        "host_config": api.create_host_config(
            network_mode=rules.network,
            extra_hosts=extra_hosts,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            ipc_mode="private",
            pids_limit=rules.pids_limit,
            shm_size=container.shm_mb * _MB or None,
            mem_limit=memory or None,
            memswap_limit=memory or None,
            nano_cpus=round(1e9 * (container.cpus or rules.most_cpus)) or None,
            init=host.has_init() or None,
            log_config=LogConfig(type=LogConfig.types.JSON, config=_LOG_ROTATION),
            mounts=[
                DockerMount(m.target, m.source, type="bind", read_only=m.read_only, propagation="rprivate")
                for m in mounts
            ],
            device_requests=_device_requests(launch, access),
        ),
    }


def access_of(host: Host, launch: Launch) -> Access:
    """How the container gets at its devices."""
    if all(device.id.startswith("SIM-") for device in launch.devices):
        return "variable"  # there is nothing to get at
    return host.gpu_access()


def _device_requests(launch: Launch, access: Access) -> list[DeviceRequest] | None:
    ids = [device.id for device in launch.devices]
    if access == "nvidia":
        return [DeviceRequest(driver="nvidia", device_ids=ids, capabilities=[["gpu", "compute", "utility"]])]
    if access == "cdi":
        return [DeviceRequest(driver="cdi", device_ids=[f"nvidia.com/gpu={id}" for id in ids])]
    return None


def _environment(
    launch: Launch, container: Container, host: DockerHost, rules: ContainerRules, access: Access
) -> tuple[dict[str, str], dict[str, str]]:
    """The variables, and the names of hosts that they use."""
    env = {name: value for name, value in launch.env.items() if name not in container.secrets}
    extra_hosts: dict[str, str] = {}
    if "PREFECT_API_URL" in env:
        env["PREFECT_API_URL"] = url = rules.api_url or _seen_from_inside(env["PREFECT_API_URL"], host)
        if urlsplit(url).hostname == _HOST_NAME:
            extra_hosts[_HOST_NAME] = "host-gateway"
    env |= {f"{name}_FILE": f"{SECRETS}/{name}" for name in container.secrets}
    env |= device_environment(launch)
    if launch.hears_intents:
        env["GPU_FLOWS_ATTEMPT_FOLDER"] = OURS
    if launch.checkpoints:
        env[contract.DIRECTORY] = CHECKPOINTS
    if access == "cdi":  # the devices come another way; an NVIDIA runtime must not add its own
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    return env, extra_hosts


def _seen_from_inside(url: str, host: DockerHost) -> str:
    """The worker's address of the Prefect server, as a container can use it."""
    parts = urlsplit(url)
    if parts.hostname not in _HERE:
        return url
    if not host.is_here:
        raise LaunchError(
            f"the worker knows the Prefect server as {url}, which means nothing on host {host.name!r}. "
            "Set the Prefect API address in the cluster block's container rules."
        )
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{_HOST_NAME}{port}"))


# -- what it finds inside ---------------------------------------------------------------------


def files_for(launch: Launch) -> dict[str, bytes]:
    """What is put into the container before it starts: our entry for a flow, and its secrets."""
    files: dict[str, bytes] = {}
    inside = OURS.lstrip("/")
    if launch.hears_intents:
        package = Path(__file__).parents[2]
        files[f"{inside}/entry.py"] = (package / "runtimes" / "entry.py").read_bytes()
        files[f"{inside}/prefect_private.py"] = (package / "prefect_private.py").read_bytes()
    for name, value in launch.container.secrets.items() if launch.container else ():
        files[f"{inside}/secrets/{name}"] = value.encode()
    return files


def only_file(tar: bytes) -> bytes:
    """The content of the one file in a tar."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        member = opened.next()
        file = opened.extractfile(member) if member and member.isfile() else None
        return file.read() if file else b""


def look_up(user: str, passwd: bytes) -> tuple[int, int]:
    """The numbers of a user by name; root's where the image does not know it."""
    for line in passwd.decode(errors="replace").splitlines():
        name, *rest = line.split(":")
        if name == user and len(rest) > 2 and rest[1].isdigit() and rest[2].isdigit():
            return int(rest[1]), int(rest[2])
    return 0, 0


FOLDERS = (OURS.lstrip("/"), SECRETS.lstrip("/"))
