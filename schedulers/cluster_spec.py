"""Clusters in one line: `3x4:GTX 1080 Ti:11` is three nodes with four such devices of 11 GB each.

A spec is `NODESxGPUS[:MODEL[:MEM_GB]]`; several are joined by `+` (`15x4:V100:16+8x8:A100:80`).
Nodes are numbered through, node-1, node-2 and so on, so the same spec always means the same cluster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from gpu_flows.schedulers.model import Device, Node

DEFAULT_MODEL = "GPU"
DEFAULT_MEMORY_GB = 16.0
MOST_DEVICES = 1_000_000  # more is a slip of the finger, and would only fill the memory

_SHAPE = re.compile(r"(\d{1,9})\s*x\s*(\d{1,9})", re.IGNORECASE | re.ASCII)
_EXAMPLE = "Write NODESxGPUS[:MODEL[:MEM_GB]], for example 3x4:GTX 1080 Ti:11."


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal nodes."""

    nodes: int
    gpus: int
    model: str = DEFAULT_MODEL
    memory_mb: int = round(1024 * DEFAULT_MEMORY_GB)

    def node(self, name: str) -> Node:
        devices = (
            Device(f"SIM-{name}-{index}", name, index, self.model, self.memory_mb)
            for index in range(self.gpus)
        )
        return Node(name, tuple(devices))


def declare(spec: str) -> list[Node]:
    """The nodes of a spec. Raises ValueError with what is wrong and how to write it."""
    return build(parse(spec))


def parse(spec: str) -> list[Kind]:
    """The kinds of nodes that a spec names, in its order."""
    kinds = [_kind(part) for part in spec.split("+")]
    devices = sum(kind.nodes * kind.gpus for kind in kinds)
    if devices > MOST_DEVICES:
        raise ValueError(f"Cluster '{spec}' has {devices:,} devices; declare at most {MOST_DEVICES:,}.")
    return kinds


def build(kinds: Iterable[Kind]) -> list[Node]:
    numbers = count(1)
    return [kind.node(f"node-{next(numbers)}") for kind in kinds for _ in range(kind.nodes)]


def _kind(part: str) -> Kind:
    shape, *rest = (field.strip() for field in part.split(":"))
    if len(rest) > 2:
        raise ValueError(f"Cluster '{part}' has too many parts. {_EXAMPLE}")
    model, memory = [*rest, "", ""][:2]
    nodes, gpus = _shape(shape, part)
    memory_gb = _gigabytes(memory, part) if memory else DEFAULT_MEMORY_GB
    return Kind(nodes, gpus, model or DEFAULT_MODEL, round(1024 * memory_gb))


def _shape(shape: str, part: str) -> tuple[int, int]:
    match = _SHAPE.fullmatch(shape)
    if not match:
        raise ValueError(f"Cluster '{part}' does not begin with a number of nodes and of GPUs. {_EXAMPLE}")
    nodes, gpus = int(match[1]), int(match[2])
    if nodes < 1 or gpus < 1:
        raise ValueError(f"Cluster '{part}' is empty: it needs at least one node with one GPU. {_EXAMPLE}")
    return nodes, gpus


def _gigabytes(memory: str, part: str) -> float:
    try:
        gigabytes = float(memory)
    except ValueError:
        raise ValueError(f"Cluster '{part}': '{memory}' is not a number of gigabytes. {_EXAMPLE}") from None
    if not math.isfinite(gigabytes) or gigabytes <= 0:
        raise ValueError(f"Cluster '{part}': a device's memory must be above 0 GB. {_EXAMPLE}")
    return gigabytes
