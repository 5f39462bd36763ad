"""What a command and the worker tell each other about runs that nobody has submitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.estimate import Estimate


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run as `gpu-flows submit` would create it."""

    parameters: dict[str, Any]
    variables: dict[str, Any]
    name: str = ""
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ImaginedJob:
    job: Job | None  # None: it would be refused
    duration: Estimate | None = None  # on its devices; None: nothing is known
    code: str = ""  # why it would be refused, or may not enter the queue yet
    why: str = ""
    fix: str = ""


IMAGINED = TypeAdapter(list[ImaginedJob])
