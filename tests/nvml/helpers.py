"""Helpers to read a source of devices and to find the probes it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from gpu_flows.devices.base import Reading
from gpu_flows.devices.nvml import NvmlDevices


def by_id(source: NvmlDevices) -> dict[str, Reading]:
    return {reading.device_id: reading for reading in source.read()}


def eventually(condition: Callable[[], object]) -> None:
    """Wait until the condition is true. The limit only ends a test that would hang."""
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up, "the condition has not become true"
        time.sleep(0.02)


def children() -> list[psutil.Process]:
    """Return the running probes that this process has started."""
    return [child for child in psutil.Process().children() if _is_live_probe(child)]


def _is_live_probe(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE and "nvml_probe.py" in " ".join(child.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False


def end_probe() -> None:
    """Kill the only probe, as a system that is out of memory would."""
    [probe] = children()
    probe.kill()
    eventually(lambda: not children())
