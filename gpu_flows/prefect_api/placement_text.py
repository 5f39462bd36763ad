"""Where a job runs, in words for the logs and as tags, which both UIs of Prefect show beside the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_flows.schedulers.model import Device

TAG = "gpus:"
MOST_TAGS = 4  # nodes with a tag each; a job on more nodes gets one tag


def describe_devices(devices: Sequence[Device]) -> str:
    """Return the devices in words, such as `node-1: GPU 0-3; node-2: GPU 1, 3`."""
    return "; ".join(f"{node}: GPU {numbers}" for node, numbers in _by_node(devices).items())


def placement_tags(devices: Sequence[Device]) -> list[str]:
    """Return the devices as tags, such as `gpus:node-2:1,3`."""
    by_node = _by_node(devices)
    if len(by_node) > MOST_TAGS:
        return [f"{TAG}{len(devices)} on {len(by_node)} nodes"]
    return [f"{TAG}{node}:{numbers.replace(' ', '')}" for node, numbers in by_node.items()]


def without_placement(tags: Iterable[str]) -> list[str]:
    """Return the tags without those of a placement."""
    return [tag for tag in tags if not tag.startswith(TAG)]


def _by_node(devices: Sequence[Device]) -> dict[str, str]:
    indices: dict[str, list[int]] = {}
    for device in devices:
        indices.setdefault(device.node, []).append(device.index)
    return {node: _ranges(sorted(numbers)) for node, numbers in indices.items()}


def _ranges(numbers: list[int]) -> str:
    """Return sorted numbers as `0-3, 6`."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
