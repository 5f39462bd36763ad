"""Translates a launch into Docker's arguments: the name, labels, limits, devices and files of its container.

Nothing here changes a host. The arguments are built with the client's own helpers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from docker import APIClient
from docker.types import DeviceRequest, LogConfig

from gpu_flows.blocks.docker import ContainerRules, DockerHost
from gpu_flows.checkpoints import contract
from gpu_flows.runtimes.attempt_store import dump_launch, parse_launch
from gpu_flows.runtimes.base import Container, Launch, LaunchError, Mount, device_environment
from gpu_flows.runtimes.docker.host import INSTALLATION, GpuAccess, Host
from gpu_flows.runtimes.docker.mounts import OpenMounts
from gpu_flows.runtimes.docker.rules import CONTAINER_FOLDER, resolve_mount, with_tag

SECRETS = f"{CONTAINER_FOLDER}/secrets"
CHECKPOINTS = f"{CONTAINER_FOLDER}/checkpoints"
_LAUNCH = "gpu-flows.launch"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
FOLDERS = {CONTAINER_FOLDER: 0o755, SECRETS: 0o755}  # created in every container that gets files
_HOST_NAME = "host.docker.internal"
_LOG_ROTATION = {"max-size": "10m", "max-file": "3"}
_MB = 1024 * 1024


# -- identity ---------------------------------------------------------------------------------


def container_name(launch: Launch) -> str:
    """Return the container's name. It is the same for a second launch of the attempt, which Docker then
    refuses because the name is taken."""
    return f"gf-{launch.job.id}-{launch.attempt}"


def container_labels(launch: Launch, installation: str) -> dict[str, str]:
    return {
        INSTALLATION: installation,
        "gpu-flows.pool": launch.pool,
        "gpu-flows.run": launch.job.id,
        "gpu-flows.attempt": str(launch.attempt),
        "gpu-flows.devices": ",".join(device.id for device in launch.devices),
        _LAUNCH: dump_launch(launch),
    }


def is_same_attempt(launch: Launch, installation: str, labels: Mapping[str, str]) -> bool:
    """Whether a container with these labels is this attempt. The launches may differ, such as in the policy
    that planned them."""
    expected = container_labels(launch, installation)
    return all(labels.get(name) == value for name, value in expected.items() if name != _LAUNCH)


def read_launch(name: str, labels: Mapping[str, str]) -> Launch | None:
    """Return the launch in a container's labels. None if the container's name is not the one of that
    launch: an image can have any labels."""
    try:
        launch = parse_launch(labels[_LAUNCH])
    except (ValueError, KeyError, TypeError):
        return None
    return launch if launch.container and container_name(launch) == name.lstrip("/") else None


def read_listed_launch(listed: Mapping[str, Any]) -> Launch | None:
    """Return the launch of a container as Docker lists it."""
    return read_launch((listed.get("Names") or [""])[0], listed.get("Labels") or {})


# -- arguments --------------------------------------------------------------------------------


def create_arguments(
    api: APIClient,
    launch: Launch,
    installation: str,
    host: Host,
    rules: ContainerRules,
    opened: OpenMounts,
    extra_mounts: Sequence[Mount] = (),
) -> dict[str, Any]:
    """Return the arguments of `create_container`. The pool's rules do not apply to `extra_mounts`."""
    container = launch.container
    assert container is not None
    access = _choose_gpu_access(host, launch)
    env, extra_hosts = _environment(launch, container, host.settings, rules, access)
    memory = (container.memory_mb or round(1024 * rules.most_memory_gb)) * _MB
    mounts = [resolve_mount(mount, rules.mount_roots, host.settings.is_here) for mount in container.mounts]
    mounts += extra_mounts
    return {
        "image": with_tag(container.image),
        "name": container_name(launch),
        "command": list(launch.command) or None,
        "working_dir": launch.directory or None,
        "environment": env,
        "labels": container_labels(launch, installation),
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
            mounts=[opened.to_docker(mount) for mount in mounts],
            device_requests=_device_requests(launch, access),
        ),
    }


def _choose_gpu_access(host: Host, launch: Launch) -> GpuAccess:
    if all(device.id.startswith("SIM-") for device in launch.devices):
        return "variable"  # simulated devices do not exist on the host
    return host.gpu_access()


def _device_requests(launch: Launch, access: GpuAccess) -> list[DeviceRequest] | None:
    ids = [device.id for device in launch.devices]
    if access == "nvidia":
        return [DeviceRequest(driver="nvidia", device_ids=ids, capabilities=[["gpu", "compute", "utility"]])]
    if access == "cdi":
        return [DeviceRequest(driver="cdi", device_ids=[f"nvidia.com/gpu={id}" for id in ids])]
    return None


def _environment(
    launch: Launch, container: Container, host: DockerHost, rules: ContainerRules, access: GpuAccess
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables, and the host names that the container must be able to resolve for them."""
    env = {name: value for name, value in launch.env.items() if name not in container.secrets}
    extra_hosts: dict[str, str] = {}
    if "PREFECT_API_URL" in env:
        env["PREFECT_API_URL"] = url = rules.api_url or _rewrite_api_url(env["PREFECT_API_URL"], host)
        if urlsplit(url).hostname == _HOST_NAME:
            extra_hosts[_HOST_NAME] = "host-gateway"
    env |= {f"{name}_FILE": f"{SECRETS}/{name}" for name in container.secrets}
    env |= device_environment(launch)
    if launch.handles_intents:
        env["GPU_FLOWS_ATTEMPT_FOLDER"] = CONTAINER_FOLDER
    if launch.checkpoints:
        env[contract.DIRECTORY] = CHECKPOINTS
    if access == "cdi":  # an NVIDIA runtime must not add devices to those of the CDI request
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    return env, extra_hosts


def _rewrite_api_url(url: str, host: DockerHost) -> str:
    """Return the worker's address of the Prefect server in a form that works inside a container."""
    parts = urlsplit(url)
    if parts.hostname not in _LOCAL_NAMES:
        return url
    if not host.is_here:
        raise LaunchError(
            f"the worker reaches the Prefect server as {url}, which does not work from host {host.name!r}. "
            "Set the Prefect API address in the cluster block's container rules."
        )
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{_HOST_NAME}{port}"))


# -- files ------------------------------------------------------------------------------------


def container_files(launch: Launch) -> dict[str, bytes]:
    """Return the files that are copied into the container before it starts: a flow's entry, and secrets."""
    files: dict[str, bytes] = {}
    folder = CONTAINER_FOLDER.lstrip("/")
    if launch.handles_intents:
        package = Path(__file__).parents[2]
        files[f"{folder}/entry.py"] = (package / "runtimes" / "entry.py").read_bytes()
        files[f"{folder}/prefect_private.py"] = (package / "prefect_private.py").read_bytes()
    for name, value in launch.container.secrets.items() if launch.container else ():
        files[f"{folder}/secrets/{name}"] = value.encode()
    return files


def find_user(user: str, passwd: bytes) -> tuple[int, int]:
    """Return the user and group id of a user name; those of root if the image does not know the name."""
    for line in passwd.decode(errors="replace").splitlines():
        name, *rest = line.split(":")
        if name == user and len(rest) > 2 and rest[1].isdigit() and rest[2].isdigit():
            return int(rest[1]), int(rest[2])
    return 0, 0
