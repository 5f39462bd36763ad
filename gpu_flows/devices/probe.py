"""What reads NVML for NvmlDevices: the interface of a probe.

Every NVML call happens in another process (the script `nvml_probe`), because a call into a faulty driver may
never return. A probe runs that script somewhere and returns what it reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # nvml_probe imports pynvml, which only the probe's own process needs
    from gpu_flows.devices.nvml_probe import GpuSnapshot

STUCK_FIX = "Check `nvidia-smi` and `dmesg`; a stuck driver needs a GPU reset or a reboot."


class Probe(Protocol):
    """Implemented by ProcessProbe (a child process) and ContainerProbe (a container on a Docker host)."""

    def read(self, wait_for_start: bool = False) -> list[GpuSnapshot]:
        """Return a snapshot of all GPUs. Raises ProbeError if there is none within the deadline.
        With `wait_for_start`, a probe that has just been started gets more time."""
        ...

    def close(self) -> None: ...


class ProbeError(Exception):
    """The probe has no snapshot. `reason` stays the same for as long as the cause does."""

    def __init__(self, reason: str, fix: str = STUCK_FIX) -> None:
        super().__init__(f"{reason}. {fix}")
        self.reason = reason
