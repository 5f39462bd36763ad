"""What a source of devices is: it says which there are, and how each one does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu_flows.schedulers.model import Node


@dataclass(frozen=True, slots=True)
class Reading:
    """How one device does now. None where the device does not tell."""

    device_id: str
    utilization: float | None = None  # 0 to 100
    memory_used_mb: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    processes: tuple[int, ...] = ()
    ecc_errors: int | None = None  # uncorrectable ones since the device was last reset
    healthy: bool = True
    detail: str = ""  # why it is not healthy


class DeviceSource(Protocol):
    """NVML, a declaration, or (later) a cluster engine."""

    name: str

    def nodes(self) -> list[Node]:
        """The devices there are. Raises DeviceError with a way to fix it when they cannot be listed."""
        ...

    def read(self) -> list[Reading]:
        """One reading per device, within the source's deadline; never raises, never hangs.
        A device that cannot be read comes back unhealthy with the reason."""
        ...

    def news(self) -> list[Node] | None:
        """The devices there are now, if they are others than when they were last told of."""
        ...

    @property
    def trouble(self) -> str:
        """Why some devices that there should be are not known; empty when all are."""
        ...

    def close(self) -> None: ...


class DeviceError(RuntimeError):
    """Devices cannot be listed; the message says why and what to do."""


class NoDevices(DeviceError):
    """There are none here, as far as anybody can tell; not merely none that answers now."""
