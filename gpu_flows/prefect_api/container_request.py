"""The container that a run asks for, from its job variables or from the parameters of the `container` flow.

The `container` flow is only a form: its parameters describe a container, and its body never runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast, get_args

from gpu_flows.blocks import ContainerRules, GpuCluster
from gpu_flows.runtimes.base import Container, Login, Pull, Refused
from gpu_flows.runtimes.docker.command_launchers import Launcher, wrap_command
from gpu_flows.runtimes.docker.rules import CONTAINER_FOLDER, check_request, parse_mount

# Runs a flow in a container. The worker copies the file there.
FLOW_COMMAND = ("python", f"{CONTAINER_FOLDER}/entry.py")
ContainerType = Literal["PyTorch", "Horovod", "as it is"]
LAUNCHERS: dict[str, Launcher] = {"PyTorch": "auto", "Horovod": "horovodrun", "as it is": "none"}

ALWAYS_SECRET = frozenset({"PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_CLIENT_CUSTOM_HEADERS"})
_FOR_FLOWS = ("PREFECT_API_", "PREFECT_CLIENT_", "PREFECT_LOGGING_", "PREFECT_FLOWS_", "PREFECT_TASKS_")
_NOT_FOR_JOBS = ("PREFECT_API_DATABASE", "PREFECT_API_BLOCKS", "PREFECT_API_SERVICES")


def variables_from_form(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job variables that correspond to the parameters of the `container` flow."""
    container_type = parameters.get("type") or "PyTorch"
    variables = {
        "image": parameters.get("container_image"),
        "command": parameters.get("command"),
        "gpus": parameters.get("required_gpus"),
        "name": parameters.get("name"),
        "launcher": LAUNCHERS.get(str(container_type), "auto"),
    }
    return {name: value for name, value in variables.items() if value not in (None, "")}


def build_container(
    variables: Mapping[str, Any],
    env: Mapping[str, str | None],
    command: Iterable[str],
    rules: ContainerRules,
    files_are_here: bool,
    secrets: Mapping[str, str] | None = None,
    login: Login | None = None,
) -> Container:
    """Return the container that the job variables ask for. Raises Refused if the rules forbid it."""
    pull = variables.get("pull") or "if-not-present"
    if pull not in get_args(Pull):
        raise Refused(f"pull is {pull!r}, which is none of {', '.join(get_args(Pull))}")
    container = Container(
        image=str(variables["image"]),
        pull=cast(Pull, pull),
        shm_mb=_megabytes(variables.get("shm_gb", 1), "shm_gb"),
        memory_mb=_megabytes(variables.get("memory_gb", 0), "memory_gb"),
        cpus=_number(variables.get("cpus", 0), "cpus"),
        mounts=tuple(parse_mount(str(mount)) for mount in variables.get("mounts") or ()),
        secrets=dict(secrets or {}),
        login=login,
    )
    check_request(container, env, str(variables.get("working_dir") or ""), command, rules, files_are_here)
    return container


def files_are_local(cluster: GpuCluster) -> bool:
    """Return whether every Docker host sees the same files as the worker."""
    return all(host.is_here for host in cluster.docker_hosts)


def split_container_command(command: str, launcher: Launcher, gpus: int) -> tuple[str, ...]:
    """Return the arguments of a command in a container, with the launcher for this many devices."""
    try:
        return wrap_command(launcher, shlex.split(command), gpus)
    except ValueError as error:
        raise Refused(f"the command is not complete ({error}); check its quotes: {command}") from None


def container_environment(env: Mapping[str, str | None], reports_itself: bool) -> dict[str, str]:
    """Return the variables that a container gets. Of the worker's Prefect settings, a flow gets those that
    it needs to report to the server; a job that does not report itself gets none."""

    def is_passed(name: str) -> bool:
        if not name.startswith("PREFECT_"):
            return True
        needed = name.startswith(("PREFECT__", *_FOR_FLOWS)) and not name.startswith(_NOT_FOR_JOBS)
        return reports_itself and needed

    return {name: value for name, value in env.items() if value is not None and is_passed(name)}


def find_secret_names(env: Mapping[str, Any]) -> set[str]:
    """Return the names of the variables that are secret: those whose unresolved value refers to a block."""
    return {name for name, value in env.items() if "prefect.blocks." in str(value)} | ALWAYS_SECRET


def _megabytes(value: Any, name: str) -> int:
    return round(1024 * _number(value, name))


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise Refused(f"{name} is {value!r}, which is no number") from None
    if not 0 <= number < 1e9:
        raise Refused(f"{name} is {value!r}, which is no sensible number")
    return number
