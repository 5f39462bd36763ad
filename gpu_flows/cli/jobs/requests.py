"""What `gpu-flows submit` is asked to run: commands, containers, or a deployment as it is.

`build_requests` turns the options into one request for each run to create. A file of container jobs holds
one JSON object, or a list of them, with the keys of Schedulearn's requests.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.jobs.arrays import (
    INDEX_VARIABLE,
    Member,
    check_swept_names_are_used,
    list_members,
    split_limit,
)
from gpu_flows.cli.jobs.deployments import COMMAND, CONTAINER
from gpu_flows.cli.jobs.submit_options import CONTAINER_FLAGS, SubmitOptions, build_job_variables
from gpu_flows.cli.options import parse_assignments, parse_json_or_text
from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.worker.status import read_status

KEYS = ("name", "type", "container_image", "command", "required_gpus")
TYPES = {  # as users write them -> as the `container` flow calls them
    "pytorch": "PyTorch",
    "torch": "PyTorch",
    "horovod": "Horovod",
    "tensorflow": "Horovod",  # Schedulearn starts these two with horovodrun
    "mxnet": "Horovod",
    "as it is": "as it is",
}
EXAMPLE = (
    '{"name": "mnist", "type": "PyTorch", "container_image": "pytorch/pytorch", '
    '"command": "python train.py", "required_gpus": 2}'
)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A run to create: the parameters of its flow, its job variables, its name, and where it was read."""

    parameters: dict[str, Any]
    name: str = ""
    source: str = ""  # `jobs.json, job 2: ` in error messages; empty for a request from the options
    variables: dict[str, Any] = field(default_factory=dict)


def build_requests(
    options: SubmitOptions, words: list[str] | None, pool: str
) -> tuple[str, list[JobRequest], bool]:
    """The flow to run (empty: the named deployment's), the requests, and whether they are a list.

    `words` is the command after --, None without one. Raises BadInput.
    """
    variables = build_job_variables(options)
    if options.file:
        _check_file_alone(options, words)
        requests, is_list = read_requests(options.file)
        variables |= {"working_dir": options.directory} if options.directory else {}
        return CONTAINER, [replace(request, variables=variables) for request in requests], is_list
    if words is not None and options.deployment:
        raise BadInput(f"Name a deployment ({options.deployment[0]!r}) or give a command after --, not both.")
    flow = CONTAINER if options.image and not options.deployment else COMMAND if words is not None else ""
    members = list_members(split_limit(options.array)[0], options.sweep or [])
    if flow:
        check_swept_names_are_used(members, [*(words or []), *(options.param or []), *(options.env or [])])
    requests = [_request_member(options, flow, words, member, variables, pool) for member in members]
    return flow, requests, bool(options.array or options.sweep)


def _check_file_alone(options: SubmitOptions, words: list[str] | None) -> None:
    """Refuse options that repeat what a file of jobs states."""
    given = {
        "--image": options.image,
        "--gpus": options.gpus,
        "--name": options.name,
        "a deployment": options.deployment,
        "a command": words is not None,
        "--param": options.param,
        "--array": options.array,
        "--sweep": options.sweep,
    }
    if repeated := [name for name, value in given.items() if value]:
        raise BadInput(f"{options.file} states what to run: leave {repeated[0]} out.")


def _request_member(
    options: SubmitOptions,
    flow: str,
    words: list[str] | None,
    member: Member,
    variables: dict[str, Any],
    pool: str,
) -> JobRequest:
    """The request for one job of an array or a sweep, or for the only job."""
    filled = None if words is None else [member.fill(word) for word in words]
    deployment = (options.deployment or [flow])[0].rpartition("/")[2]
    name = member.name(options.name or deployment) if member.index else options.name
    own, directory = dict(variables), member.fill(options.directory)
    if flow == CONTAINER:
        request = request_container(options.image, filled, options.shell, options.gpus, name)
        own = {key: value for key, value in own.items() if key not in ("image", "gpus")}  # parameters
    elif flow == COMMAND:
        if stray := [flag for variable, flag in CONTAINER_FLAGS.items() if variable in own]:
            raise BadInput(f"{stray[0]} is for jobs in containers.", "Name the image with --image IMG.")
        request = request_command(filled or [], options.shell, directory or _find_directory(pool), name)
    else:
        request = JobRequest({key: parse_json_or_text(value) for key, value in member.swept.items()}, name)
    given = [member.fill(assignment) for assignment in options.param or []]
    own |= _fill_environment(options, member)
    if directory and flow != COMMAND:
        own["working_dir"] = directory
    parameters = {**request.parameters, **parse_assignments(given, "--param", parse_json_or_text)}
    return replace(request, parameters=parameters, variables=own)


def _fill_environment(options: SubmitOptions, member: Member) -> dict[str, Any]:
    """The job variable `env` of a member of an array; nothing for a single job."""
    if not member.index:
        return {}
    filled = [member.fill(assignment) for assignment in options.env or []]
    return {"env": {INDEX_VARIABLE: member.index, **parse_assignments(filled, "--env", str)}}


def _find_directory(pool: str) -> str:
    """The current directory, if the pool's worker runs on this machine and so can use it."""
    return str(Path.cwd()) if read_status(pool) else ""


def request_command(words: Sequence[str], shell: bool, directory: str, name: str) -> JobRequest:
    """The request for a run of the `command` flow."""
    if not words:
        raise BadInput("There is no command after --.", "For example: gpu-flows submit -- python train.py")
    line = words[0] if len(words) == 1 else " ".join(words) if shell else shlex.join(words)
    return JobRequest({"command": line, "shell": shell, "working_directory": directory}, name)


def request_container(
    image: str, words: Sequence[str] | None, shell: bool, gpus: int | None, name: str
) -> JobRequest:
    """The request for a run of the `container` flow. Without words, the image runs its own command."""
    line = ""
    if words:
        line = " ".join(words) if shell or len(words) == 1 else shlex.join(words)
        line = shlex.join(["sh", "-c", line]) if shell else line
    parameters = {"container_image": image, "command": line, "required_gpus": gpus, "name": name}
    return JobRequest({key: value for key, value in parameters.items() if value not in (None, "")}, name)


def read_requests(path: Path) -> tuple[list[JobRequest], bool]:
    """The container jobs in a file, and whether it holds a list of them. Raises BadInput."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}.", f"A job is: {EXAMPLE}") from None
    if not isinstance(content, list):
        return [_parse_request(content, f"{path}: ")], False
    if not content:
        raise BadInput(f"{path} has an empty list: there is nothing to submit.")
    return [_parse_request(job, f"{path}, job {number}: ") for number, job in enumerate(content, 1)], True


def _parse_request(job: Any, source: str) -> JobRequest:
    def wrong(what: str, fix: str = "") -> BadInput:
        return BadInput(f"{source}{what}", fix or "Nothing was submitted.")

    if not isinstance(job, dict):
        raise wrong(f"this is not a job: {json.dumps(job)[:60]}", f"A job is: {EXAMPLE}")
    for key in job:
        if key not in KEYS:
            raise wrong(f"there is no key {key!r}.", _suggest_key(key))
    values = {key: value for key, value in job.items() if value is not None}
    for key in set(KEYS) - {"required_gpus"}:
        if not isinstance(values.get(key, ""), str):
            raise wrong(f"{key} is {json.dumps(values[key])}, but must be a text.")
    if not values.get("container_image", "").strip():
        raise wrong("container_image is missing. It names the image to run.")
    gpus = values.get("required_gpus", 1)
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        raise wrong(f"required_gpus is {json.dumps(gpus)}, but must be a whole number of at least 1.")
    kind = TYPES.get(values.get("type", "pytorch").strip().lower())
    if kind is None:
        raise wrong(
            f"type is {values['type']!r}, which is none of PyTorch, Horovod, TensorFlow, MXNet, 'as it is'.",
            "torchrun starts PyTorch, horovodrun the next three. Nothing was submitted.",
        )
    return JobRequest({**values, "type": kind}, values.get("name", ""), source)


def _suggest_key(wrong: str) -> str:
    return did_you_mean(wrong, KEYS) or f"A job has: {', '.join(KEYS)}."
