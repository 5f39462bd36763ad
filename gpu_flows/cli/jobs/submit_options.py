"""The options of `gpu-flows submit`, and the job variables that they set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.options import duration_option, parse_assignments, quantity_option
from gpu_flows.common.quantities import parse_megabytes
from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.prefect_api.conventions import PriorityClass
from gpu_flows.runtimes.base import Pull
from gpu_flows.runtimes.docker.command_launchers import Launcher

Texts = list[str] | None
Number = float | None
Count = int | None


def _list_choices(choices: Any) -> str:
    return ", ".join(get_args(choices)[:-1]) + f" or {get_args(choices)[-1]}"


def _option(metavar: str, help: str, name: str | None = None) -> Any:
    return typer.Option(*([name] if name else []), metavar=metavar, help=help)


def _gigabytes(text: str) -> float:
    return parse_megabytes(text) / 1024


def _memory(help: str) -> Any:
    return quantity_option("SIZE", f"{help} As 4GB or 512MB; a bare number is GB.", _gigabytes)


def _flag(name: str, help: str) -> Any:
    return typer.Option(name, help=help)


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The arguments and options of `submit`, as typed."""

    deployment: Annotated[Texts, typer.Argument(help="The name of a deployment, or FLOW/NAME.")] = None
    gpus: Annotated[Count, _option("N", "Number of devices, all at the same time.")] = None
    memory: Annotated[Number, _memory("Memory that the job needs on each device.")] = None
    priority: Annotated[Count, _option("N", "Priority; a higher number is more urgent.")] = None
    priority_class: Annotated[
        str | None, _option("NAME", "Priority class: low, normal, high or urgent.", name="--class")
    ] = None
    min_gpus: Annotated[Count, _option("N", "Elastic: the fewest devices that the job can run on.")] = None
    max_gpus: Annotated[Count, _option("N", "Elastic: the most devices that the job can use.")] = None
    no_preempt: Annotated[bool, _flag("--no-preempt", "Never stop the job in favour of others.")] = False
    name: Annotated[str, typer.Option(help="Name of the run.")] = ""
    model: Annotated[Texts, _option("PATTERN", "Only GPUs whose model matches; may be repeated.")] = None
    node: Annotated[Texts, _option("PATTERN", "Only nodes whose name matches; may be repeated.")] = None
    span_nodes: Annotated[bool, _flag("--span-nodes", "The devices may be on several nodes.")] = False
    expected: Annotated[Number, duration_option("Expected run time.")] = None
    deadline: Annotated[Number, duration_option("Deadline, counted from when the run is due.")] = None
    env: Annotated[Texts, _option("K=V", "Environment variable; may be repeated.")] = None
    param: Annotated[Texts, _option("K=V", "Parameter of the flow; may be repeated.")] = None
    directory: Annotated[
        str,
        typer.Option(
            help="Working directory. Default for a command, if the worker runs on this machine: the current "
            "directory."
        ),
    ] = ""
    shell: Annotated[bool, _flag("--shell", "Run the command with /bin/sh.")] = False
    image: Annotated[str, _option("IMG", "Run the job in a container of this image.")] = ""
    file: Annotated[Path | None, _option("JSON", "Submit the container jobs that a file describes.")] = None
    launcher: Annotated[
        str, _option("HOW", f"How a container starts on several GPUs: {_list_choices(Launcher)}.")
    ] = ""
    mount: Annotated[Texts, _option("FROM:TO[:ro]", "Mount a folder of the host, where allowed.")] = None
    pull: Annotated[str, _option("WHEN", f"When to pull the image: {_list_choices(Pull)}.")] = ""
    shm: Annotated[Number, _memory("Shared memory of the container; default 1GB.")] = None
    memory_limit: Annotated[Number, _memory("Limit of the container's main memory.")] = None
    cpus: Annotated[Number, _option("N", "Limit of the container's CPUs.")] = None
    registry_credentials: Annotated[
        str, _option("BLOCK", "Docker Registry Credentials block, for a private image.")
    ] = ""
    array: Annotated[
        str,
        _option(
            "RANGE",
            "One job for each index: 1-10, 0-90:10 or 1,3,5-8; {index} stands for it. 1-10%4 runs at most 4.",
        ),
    ] = ""
    sweep: Annotated[
        Texts,
        _option("K=V,V", "One job for each value of a parameter, or of {K} in a command; may be repeated."),
    ] = None
    after: Annotated[
        Texts, _option("RUN[,RUN]", "Start only after these runs have completed; may be repeated.")
    ] = None
    after_any: Annotated[
        Texts, _option("RUN[,RUN]", "Start only after these runs have ended, in whatever way.")
    ] = None
    hold: Annotated[bool, _flag("--hold", "Let the job wait until `gpu-flows release`.")] = False
    user: Annotated[str, typer.Option(help="The user whose job it is; default: you.")] = ""
    dry_run: Annotated[
        bool, _flag("--dry-run", "Tell where and when the job would start, and submit nothing.")
    ] = False
    wait: Annotated[bool, _flag("--wait", "Print the output until the job ends.")] = False


# Option -> job variable.
_CONTAINER_VARIABLES = {
    "pull": "pull",
    "launcher": "launcher",
    "mount": "mounts",
    "shm": "shm_gb",
    "memory_limit": "memory_gb",
    "cpus": "cpus",
    "registry_credentials": "registry_credentials",
}
_JOB_VARIABLES = {
    **{name: name for name in ("gpus", "priority", "priority_class", "min_gpus", "max_gpus", "image")},
    "memory": "gpu_memory_gb",
    "model": "gpu_models",
    "node": "nodes",
    "expected": "expected_seconds",
    "deadline": "deadline_seconds",
}


def _write_flag(option: str) -> str:
    return "--class" if option == "priority_class" else f"--{option.replace('_', '-')}"


# Job variable -> the flag that sets it.
CONTAINER_FLAGS = {variable: _write_flag(option) for option, variable in _CONTAINER_VARIABLES.items()}
FLAGS = {variable: _write_flag(option) for option, variable in _JOB_VARIABLES.items()}
FLAGS |= {"env": "--env", "hold": "--hold", "after": "--after", "after_any": "--after-any", **CONTAINER_FLAGS}


def build_job_variables(options: SubmitOptions) -> dict[str, Any]:
    """The job variables that the options set. Raises BadInput."""
    _check_choice("--class", options.priority_class or "", PriorityClass)
    _check_choice("--pull", options.pull, Pull)
    _check_choice("--launcher", options.launcher, Launcher)
    values = {
        variable: getattr(options, option)
        for option, variable in {**_JOB_VARIABLES, **_CONTAINER_VARIABLES}.items()
    }
    values |= {
        "preemptible": False if options.no_preempt else None,
        "may_span_nodes": options.span_nodes or None,
        "hold": options.hold or None,
        "env": parse_assignments(options.env or [], "--env", str) or None,
    }
    if options.cpus is not None and not math.isfinite(options.cpus):
        raise BadInput(f"--cpus {options.cpus} must be a finite number.")
    return {variable: value for variable, value in values.items() if value not in (None, "", [])}


def _check_choice(flag: str, value: str, choices: Any) -> None:
    if value and value not in get_args(choices):
        raise BadInput(
            f"{flag} {value!r} is none of {_list_choices(choices)}.", did_you_mean(value, get_args(choices))
        )
