"""Jobs in containers, as `gpu-flows submit` makes them: from its options, or from a file of jobs.

A file holds one JSON object, or a list of them, with the keys of Schedulearn's requests.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpu_flows.cli.problem import BadInput, Problem
from gpu_flows.cli.server import CLUSTER, Server

KEYS = ("name", "type", "container_image", "command", "required_gpus")
TYPES = {  # as people write them -> as the flow's form has them
    "pytorch": "PyTorch",
    "torch": "PyTorch",
    "horovod": "Horovod",
    "tensorflow": "Horovod",  # Schedulearn gave these two to horovodrun
    "mxnet": "Horovod",
    "as it is": "as it is",
}
EXAMPLE = (
    '{"name": "mnist", "type": "PyTorch", "container_image": "pytorch/pytorch", '
    '"command": "python train.py", "required_gpus": 2}'
)


@dataclass(frozen=True, slots=True)
class Order:
    """A run to be made: of a deployment's parameters, and where they were said."""

    parameters: dict[str, Any]
    name: str = ""
    where: str = ""  # `jobs.json, job 2: `; empty for what was typed


def typed(image: str, words: Sequence[str] | None, shell: bool, gpus: int | None, name: str) -> Order:
    """The job that the options describe. Without words it is what the image runs by itself."""
    line = ""
    if words:
        line = " ".join(words) if shell or len(words) == 1 else shlex.join(words)
        line = shlex.join(["sh", "-c", line]) if shell else line
    asked = {"container_image": image, "command": line, "required_gpus": gpus, "name": name}
    return Order({key: value for key, value in asked.items() if value not in (None, "")}, name)


def read(path: Path) -> tuple[list[Order], bool]:
    """The jobs in a file, and whether it holds a list of them."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}.", f"A job is: {EXAMPLE}") from None
    if not isinstance(said, list):
        return [_order(said, f"{path}: ")], False
    if not said:
        raise BadInput(f"{path} has an empty list: there is nothing to submit.")
    return [_order(each, f"{path}, job {number}: ") for number, each in enumerate(said, 1)], True


def _order(said: Any, where: str) -> Order:
    def wrong(what: str, fix: str = "") -> BadInput:
        return BadInput(f"{where}{what}", fix or "Nothing was submitted.")

    if not isinstance(said, dict):
        raise wrong(f"this is no job: {json.dumps(said)[:60]}", f"A job is: {EXAMPLE}")
    for key in said:
        if key not in KEYS:
            alike = [each for each in KEYS if key in each] or get_close_matches(key, KEYS, n=1)
            hint = f"Did you mean {alike[0]!r}?" if alike else f"A job has: {', '.join(KEYS)}."
            raise wrong(f"there is no key {key!r}.", hint)
    given = {key: value for key, value in said.items() if value is not None}
    for key in set(KEYS) - {"required_gpus"}:
        if not isinstance(given.get(key, ""), str):
            raise wrong(f"{key} is {json.dumps(given[key])}, and has to be a text.")
    if not given.get("container_image", "").strip():
        raise wrong("container_image is missing: which image is to run?")
    gpus = given.get("required_gpus", 1)
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        raise wrong(f"required_gpus is {json.dumps(gpus)}, and has to be a whole number of 1 or more.")
    kind = TYPES.get(given.get("type", "pytorch").strip().lower())
    if kind is None:
        raise wrong(
            f"type is {given['type']!r}, which is none of PyTorch, Horovod, TensorFlow, MXNet, 'as it is'.",
            "torchrun starts PyTorch, horovodrun the next three. Nothing was submitted.",
        )
    return Order({**given, "type": kind}, given.get("name", ""), where)


def check_pool(server: Server, pool: str) -> None:
    """Say now what the worker would say later: containers need a pool that runs them."""
    block = server.block_name(pool, "cluster")
    document = server.block(CLUSTER, block)
    if document and document["data"].get("runtime") == "docker":
        return
    raise Problem(
        f"Pool {pool!r} runs jobs as processes, not in containers: so says its GPU Cluster block {block!r}.",
        "Choose the runtime 'docker' there, in the UI or by `gpu-flows up --docker`. Nothing was submitted.",
    )
