"""The container that a run asks for: from its job variables, or from the parameters of the `container` flow.

The `container` flow is a form: its parameters say what to run, and it never runs itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast, get_args

from gpu_flows.blocks import ContainerRules
from gpu_flows.runtimes.base import Container, Login, Pull, Refused
from gpu_flows.runtimes.docker.command_launchers import Launcher, wrap_command
from gpu_flows.runtimes.docker.rules import CONTAINER_FOLDER, check_request, parse_mount

FORM = "gpu_flows.flows.container:container"  # the entrypoint by which the flow is known
ENTRY = (
    "python",
    f"{CONTAINER_FOLDER}/entry.py",
)  # what a flow's interpreter runs in a container: brought along
Kind = Literal["PyTorch", "Horovod", "as it is"]
LAUNCHERS: dict[str, Launcher] = {"PyTorch": "auto", "Horovod": "horovodrun", "as it is": "none"}

ALWAYS_SECRET = frozenset({"PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_CLIENT_CUSTOM_HEADERS"})
_FOR_FLOWS = ("PREFECT_API_", "PREFECT_CLIENT_", "PREFECT_LOGGING_", "PREFECT_FLOWS_", "PREFECT_TASKS_")
_NOT_FOR_JOBS = ("PREFECT_API_DATABASE", "PREFECT_API_BLOCKS", "PREFECT_API_SERVICES")


def asked_by_form(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The job variables that the `container` flow's parameters come to."""
    kind = parameters.get("type") or "PyTorch"
    asked = {
        "image": parameters.get("container_image"),
        "command": parameters.get("command"),
        "gpus": parameters.get("required_gpus"),
        "name": parameters.get("name"),
        "launcher": LAUNCHERS.get(str(kind), "auto"),
    }
    return {name: value for name, value in asked.items() if value not in (None, "")}


def container_of(
    asked: Mapping[str, Any],
    env: Mapping[str, str | None],
    command: Iterable[str],
    rules: ContainerRules,
    files_are_here: bool,
    secrets: Mapping[str, str] | None = None,
    login: Login | None = None,
) -> Container:
    """What these job variables ask for, if they may. Raises Refused with the reason."""
    pull = asked.get("pull") or "if-not-present"
    if pull not in get_args(Pull):
        raise Refused(f"pull is {pull!r}, which is none of {', '.join(get_args(Pull))}")
    container = Container(
        image=str(asked["image"]),
        pull=cast(Pull, pull),
        shm_mb=_megabytes(asked.get("shm_gb", 1), "shm_gb"),
        memory_mb=_megabytes(asked.get("memory_gb", 0), "memory_gb"),
        cpus=_number(asked.get("cpus", 0), "cpus"),
        mounts=tuple(parse_mount(str(mount)) for mount in asked.get("mounts") or ()),
        secrets=dict(secrets or {}),
        login=login,
    )
    check_request(container, env, str(asked.get("working_dir") or ""), command, rules, files_are_here)
    return container


def command_line(command: str, launcher: Launcher, gpus: int) -> tuple[str, ...]:
    """The words of a command in a container, for so many devices."""
    try:
        return wrap_command(launcher, shlex.split(command), gpus)
    except ValueError as error:
        raise Refused(f"the command is not complete ({error}); check its quotes: {command}") from None


def environment(env: Mapping[str, str | None], speaks: bool) -> dict[str, str]:
    """The variables that go into a container. The worker's own settings of Prefect stay out, but for those
    that a flow needs to report; a job that does not speak to Prefect gets none."""
    return {
        name: value
        for name, value in env.items()
        if value is not None
        and (
            not name.startswith("PREFECT_")
            or (speaks and name.startswith(("PREFECT__", *_FOR_FLOWS)) and not name.startswith(_NOT_FOR_JOBS))
        )
    }


def secret_names(raw_env: Mapping[str, Any]) -> set[str]:
    """Which variables are secret: those that were written as a reference to a block."""
    return {name for name, value in raw_env.items() if "prefect.blocks." in str(value)} | ALWAYS_SECRET


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
