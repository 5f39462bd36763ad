"""Parses cluster specs: `3x4:GTX 1080 Ti:11` is three nodes with four such devices of 11 GB each.

A spec is `NODESxGPUS[:MODEL[:MEM_GB]][@RACKSIZE]`, or several of them joined by `+`
(`15x4:V100:16+8x8:A100:80`). `16x8:V100:32@4` declares racks of four nodes; nodes without a rack size
share one rack. Nodes are named node-1, node-2 and so on, and racks likewise, so that the same spec
always means the same cluster.

A spec may also be the path of a YAML file (.yaml or .yml) with racks:

    racks:
      - {name: row-1, nodes: 4, gpus: 8, model: V100, memory_gb: 32, cpus: 96, ram_gb: 512}
      - {nodes: 2, gpus: 4, links: "nvlink:2"}

Only `gpus` is required. A rack that is named twice has two kinds of nodes. Processors and host memory
are limited only where they are given. `links` tells which devices of a node are linked (`parse_links`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpu_flows.common.yaml_files import read_yaml
from gpu_flows.schedulers.cluster.device_links import parse_links
from gpu_flows.schedulers.model import DEFAULT_RACK, Device, Node

DEFAULT_MODEL = "GPU"
DEFAULT_MEMORY_GB = 16.0
MOST_DEVICES = 1_000_000  # more is a typing error and would fill the memory

_SHAPE = re.compile(r"(\d{1,9})\s*x\s*(\d{1,9})", re.IGNORECASE | re.ASCII)
_RACK_SIZE = re.compile(r"\s*\d{1,9}\s*", re.ASCII)
_EXAMPLE = "Write NODESxGPUS[:MODEL[:MEM_GB]][@RACKSIZE], for example 3x4:GTX 1080 Ti:11."
_FILE_EXAMPLE = "Write racks: [{name: row-1, nodes: 4, gpus: 8, model: V100, memory_gb: 32}]."


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A number of equal nodes, in racks of `rack_size` nodes or in the rack `rack`."""

    nodes: int
    gpus: int
    model: str = DEFAULT_MODEL
    memory_mb: int = round(1024 * DEFAULT_MEMORY_GB)
    rack_size: int = 0
    rack: str = DEFAULT_RACK
    cpus: float = 0.0  # 0: not counted
    ram_mb: int = 0  # 0: not counted
    links: str = ""  # as `parse_links` reads them

    def make_node(self, name: str, rack: str) -> Node:
        devices = (
            Device(f"SIM-{name}-{index}", name, index, self.model, self.memory_mb)
            for index in range(self.gpus)
        )
        links = parse_links(self.links, self.gpus)
        return Node(name, tuple(devices), rack, self.cpus, self.ram_mb, links)


def declare(spec: str) -> list[Node]:
    """Return the nodes of a spec. Raises ValueError if the spec is not valid."""
    return build_nodes(parse_spec(spec))


def parse_spec(spec: str) -> list[NodeGroup]:
    """Parse a spec to groups of nodes, in its order."""
    if spec.strip().lower().endswith((".yaml", ".yml")):
        groups = _read_file(Path(spec.strip()))
    else:
        groups = [_parse_group(part) for part in spec.split("+")]
    devices = sum(group.nodes * group.gpus for group in groups)
    if devices > MOST_DEVICES:
        raise ValueError(f"Cluster '{spec}' has {devices:,} devices; declare at most {MOST_DEVICES:,}.")
    return groups


def build_nodes(groups: Iterable[NodeGroup]) -> list[Node]:
    nodes: list[Node] = []
    racks = count(1)
    for group in groups:
        rack = group.rack
        for number in range(group.nodes):
            if group.rack_size and number % group.rack_size == 0:
                rack = f"rack-{next(racks)}"
            nodes.append(group.make_node(f"node-{len(nodes) + 1}", rack))
    return nodes


# -- specs of one line ------------------------------------------------------------------------


def _parse_group(part: str) -> NodeGroup:
    part, rack_size = _split_rack_size(part)
    shape, *rest = (field.strip() for field in part.split(":"))
    if len(rest) > 2:
        raise ValueError(f"Cluster '{part}' has too many parts. {_EXAMPLE}")
    model, memory = [*rest, "", ""][:2]
    nodes, gpus = _parse_shape(shape, part)
    memory_gb = _parse_gigabytes(memory, part) if memory else DEFAULT_MEMORY_GB
    return NodeGroup(nodes, gpus, model or DEFAULT_MODEL, round(1024 * memory_gb), rack_size)


def _split_rack_size(part: str) -> tuple[str, int]:
    """Return the part without its rack size, and the rack size (0: none)."""
    rest, at, size = part.rpartition("@")
    if not at:
        return part, 0
    if not _RACK_SIZE.fullmatch(size) or int(size) < 1:
        raise ValueError(
            f"Cluster '{part}': '{size.strip()}' is not a number of nodes in a rack, 1 or more. {_EXAMPLE}"
        )
    return rest, int(size)


def _parse_shape(shape: str, part: str) -> tuple[int, int]:
    match = _SHAPE.fullmatch(shape)
    if not match:
        raise ValueError(f"Cluster '{part}' does not begin with a number of nodes and of GPUs. {_EXAMPLE}")
    nodes, gpus = int(match[1]), int(match[2])
    if nodes < 1 or gpus < 1:
        raise ValueError(f"Cluster '{part}' is empty: it needs at least one node with one GPU. {_EXAMPLE}")
    return nodes, gpus


def _parse_gigabytes(memory: str, part: str) -> float:
    try:
        gigabytes = float(memory)
    except ValueError:
        raise ValueError(f"Cluster '{part}': '{memory}' is not a number of gigabytes. {_EXAMPLE}") from None
    if not math.isfinite(gigabytes) or gigabytes <= 0:
        raise ValueError(f"Cluster '{part}': a device's memory must be above 0 GB. {_EXAMPLE}")
    return gigabytes


# -- a file with racks ------------------------------------------------------------------------


class _Rack(BaseModel):
    """Equal nodes in one rack."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)

    name: str = ""
    nodes: int = Field(default=1, ge=1)
    gpus: int = Field(ge=1)
    model: str = Field(default=DEFAULT_MODEL, min_length=1)
    memory_gb: float = Field(default=DEFAULT_MEMORY_GB, gt=0)
    cpus: float = Field(default=0.0, ge=0)
    ram_gb: float = Field(default=0.0, ge=0)
    links: str = ""

    @model_validator(mode="after")
    def _check_links(self) -> _Rack:
        parse_links(self.links, self.gpus)
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    racks: list[_Rack] = Field(min_length=1)


def _read_file(path: Path) -> list[NodeGroup]:
    try:
        file = _File.model_validate(read_yaml(path, "Cluster file", _FILE_EXAMPLE))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
        wrong = f"{where}: {first['msg']}" if where else "it has no list of racks"
        raise ValueError(f"Cluster file {path}: {wrong}. {_FILE_EXAMPLE}") from None
    return [
        NodeGroup(
            rack.nodes,
            rack.gpus,
            rack.model,
            round(1024 * rack.memory_gb),
            rack=rack.name or f"rack-{number}",
            cpus=rack.cpus,
            ram_mb=round(1024 * rack.ram_gb),
            links=rack.links,
        )
        for number, rack in enumerate(file.racks, start=1)
    ]
