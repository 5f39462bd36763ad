"""What a source of devices offers: the devices it has, and their readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu_flows.schedulers.model import Node


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of one device at one moment. A value that the device does not report is None."""

    device_id: str
    utilization: float | None = None  # 0 to 100
    memory_used_mb: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    processes: tuple[int, ...] = ()
    process_memory_mb: tuple[float | None, ...] = ()  # of each of these processes
    ecc_errors: int | None = None  # uncorrectable ones since the device was last reset
    healthy: bool = True
    detail: str = ""  # why it is not healthy


class DeviceSource(Protocol):
    """Lists and reads devices. Implemented by NvmlDevices, DockerDevices and SimulatedDevices."""

    name: str

    def nodes(self) -> list[Node]:
        """Return all nodes with their devices. Raises DeviceError if they cannot be listed."""
        ...

    def read(self) -> list[Reading]:
        """Return one reading per device within the source's deadline. It never raises and never blocks: a
        device that cannot be read is returned as unhealthy, with the reason."""
        ...

    def changed_nodes(self) -> list[Node] | None:
        """Return all nodes if they differ from those returned last, otherwise None."""
        ...

    @property
    def problem(self) -> str:
        """Why some of the expected devices are missing; empty if none is."""
        ...

    def close(self) -> None: ...


class DeviceError(RuntimeError):
    """Devices cannot be listed; the message states why and what to do."""


class NoDevices(DeviceError):
    """This machine has no devices, as opposed to devices that do not respond at the moment."""
