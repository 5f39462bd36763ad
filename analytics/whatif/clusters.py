"""The pool's devices with some more or fewer of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_flows.schedulers.model import Device, Node, all_devices


@dataclass(frozen=True, slots=True)
class ChosenCluster:
    """Nodes to replay on."""

    nodes: Sequence[Node]
    text: str  # how they differ from those of the pool; empty if they do not


def change_gpus(nodes: Sequence[Node], gpus: int) -> ChosenCluster:
    """Add devices in nodes like the largest one, or take the last devices away. Raises ValueError."""
    if gpus >= 0:
        return _add(nodes, gpus)
    present = len(all_devices(nodes))
    if -gpus >= present:
        raise ValueError(f"The pool has {present} GPUs; taking {-gpus} away leaves none.")
    return _take(nodes, -gpus)


def rename_devices(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with devices that are not those of the pool, though both may be declared and so have
    the same names: outages and jobs that ran at the beginning are recorded of the pool's only."""
    return [
        replace(node, devices=tuple(replace(device, id=f"chosen/{device.id}") for device in node.devices))
        for node in nodes
    ]


def _add(nodes: Sequence[Node], gpus: int) -> ChosenCluster:
    like = max(nodes, key=lambda node: len(node.devices))
    added: list[Node] = []
    while gpus > 0:
        devices = like.devices[:gpus]
        added.append(_copy(like, devices, f"added-{len(added) + 1}"))
        gpus -= len(devices)
    sizes = _count([len(node.devices) for node in added])
    text = f"with {sizes} more like {like.name} ({like.devices[0].model})" if added else ""
    return ChosenCluster([*nodes, *added], text)


def _copy(like: Node, devices: Sequence[Device], name: str) -> Node:
    copies = tuple(replace(device, id=f"{name}-{device.index}", node=name) for device in devices)
    return replace(like, name=name, devices=copies)


def _take(nodes: Sequence[Node], gpus: int) -> ChosenCluster:
    left = list(nodes)
    taken: Counter[str] = Counter()
    while gpus:
        last = left.pop()
        kept = last.devices[: max(0, len(last.devices) - gpus)]
        taken[last.name] = len(last.devices) - len(kept)
        gpus -= taken[last.name]
        if kept:
            left.append(replace(last, devices=kept))
    text = ", ".join(f"{count} of {name}" for name, count in taken.items())
    return ChosenCluster(left, f"without {text}")


def _count(sizes: Sequence[int]) -> str:
    """Return `2 nodes of 8 GPUs and 1 node of 4 GPUs`."""
    parts = [
        f"{count} node{'s' * (count > 1)} of {size} GPU{'s' * (size > 1)}"
        for size, count in Counter(sizes).items()
    ]
    return " and ".join(parts)
