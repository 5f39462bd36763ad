"""What `gpu-flows submit` is asked to run: commands, containers, or a deployment as it is.

A file of container jobs holds one JSON object, or a list of them, with the keys of Schedulearn's requests.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpu_flows.cli.errors import BadInput

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
    """A run to create: the parameters of its flow, its name, and where the request was read."""

    parameters: dict[str, Any]
    name: str = ""
    source: str = ""  # `jobs.json, job 2: ` in error messages; empty for a request from the options


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
    similar = [key for key in KEYS if wrong in key] or get_close_matches(wrong, KEYS, n=1)
    return f"Did you mean {similar[0]!r}?" if similar else f"A job has: {', '.join(KEYS)}."
