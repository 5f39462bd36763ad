"""Declared devices that do not exist, with readings as if the jobs on them used real GPUs.

An idle device has readings close to zero. A device with jobs reports the memory that the jobs requested, or
have allocated (see `simulated_memory`), and the activity that is measured of their processes, with a little
noise that depends on a seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_flows.devices.base import Reading
from gpu_flows.schedulers.model import Device, Node, all_devices

IDLE_MEMORY_MB = 4.0  # used by a driver
WHOLE_DEVICE_SHARE = 0.6  # of the memory, for a job that has the whole device
UNMEASURED_ACTIVITY = 80.0  # of a job whose activity is not measured
IDLE_POWER_W, BUSY_POWER_W = 15.0, 250.0
IDLE_TEMPERATURE_C, BUSY_TEMPERATURE_C = 32.0, 78.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one job uses of one of its devices."""

    memory_mb: int = 0  # requested; 0 means the whole device, as in Job.memory_mb
    activity: float | None = None  # 0 to 100; None if it is not measured
    processes: tuple[int, ...] = ()
    allocated_mb: float | None = None  # None if the job does not allocate from the device's account


class SimulatedDevices:
    """A DeviceSource. `load` is called for each reading and returns what the jobs use of each device."""

    name = "simulated"
    problem = ""

    def __init__(
        self,
        nodes: Iterable[Node],
        load: Callable[[], Mapping[str, Sequence[Load]]] = dict,
        seed: int = 0,
    ) -> None:
        self._nodes = list(nodes)
        self._devices = {device.id: device for device in all_devices(self._nodes)}
        self._load = load
        self._seed = seed
        self._lock = threading.Lock()
        self._readings_taken = 0
        self._faults: dict[str, str] = {}

    def nodes(self) -> list[Node]:
        return list(self._nodes)

    def read(self) -> list[Reading]:
        with self._lock:
            self._readings_taken += 1
            number, faults = self._readings_taken, dict(self._faults)
        try:
            load = self._load()
        except Exception:  # `read` must not raise, so only the health is reported
            return [Reading(id, healthy=id not in faults, detail=faults.get(id, "")) for id in self._devices]
        return [
            self._reading(
                device, load.get(id, ()), random.Random(f"{self._seed} {id} {number}"), faults.get(id)
            )
            for id, device in self._devices.items()
        ]

    def set_health(self, device_id: str, healthy: bool, detail: str = "") -> None:
        """Declare a device unhealthy, or healthy again."""
        if device_id not in self._devices:
            raise ValueError(f"There is no device {device_id}. Choose one of {', '.join(self._devices)}.")
        with self._lock:
            if healthy:
                self._faults.pop(device_id, None)
            else:
                self._faults[device_id] = detail or "declared unhealthy"

    def changed_nodes(self) -> list[Node] | None:
        return None

    def close(self) -> None:
        """Do nothing: this source holds no resources."""

    @staticmethod
    def _reading(device: Device, jobs: Sequence[Load], noise: random.Random, fault: str | None) -> Reading:
        utilization = _utilization(jobs, noise)
        return Reading(
            device.id,
            utilization=utilization,
            memory_used_mb=_memory(device, jobs, noise),
            power_w=_between(IDLE_POWER_W, BUSY_POWER_W, utilization, noise.uniform(-3, 3)),
            temperature_c=_between(IDLE_TEMPERATURE_C, BUSY_TEMPERATURE_C, utilization, noise.uniform(-1, 1)),
            processes=tuple(process for job in jobs for process in job.processes),
            healthy=fault is None,
            detail=fault or "",
        )


def _utilization(jobs: Sequence[Load], noise: random.Random) -> float:
    """Return the sum of the jobs' activities, at most 100."""
    if not jobs:
        return round(noise.uniform(0.0, 0.5), 1)
    activity = sum(UNMEASURED_ACTIVITY if job.activity is None else job.activity for job in jobs)
    return round(min(100.0, max(0.0, activity + noise.uniform(-2, 2))), 1)


def _memory(device: Device, jobs: Sequence[Load], noise: random.Random) -> float:
    """Return the used memory: what jobs have allocated, or about what they requested. It stays within the
    request, because the scheduler relies on that."""
    allocated = sum(job.allocated_mb for job in jobs if job.allocated_mb is not None)
    others = [job for job in jobs if job.allocated_mb is None]
    requested = sum(job.memory_mb or WHOLE_DEVICE_SHARE * device.memory_mb for job in others)
    used = allocated + requested * noise.uniform(0.97, 1.0)
    return round(min(max(IDLE_MEMORY_MB, used), device.memory_mb), 1)


def _between(idle: float, busy: float, utilization: float, noise: float) -> float:
    return round(idle + (busy - idle) * utilization / 100 + noise, 1)
