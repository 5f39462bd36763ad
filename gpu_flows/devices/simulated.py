"""Devices that exist only by declaration, and read as if the jobs on them were real GPU jobs.

An idle device reads next to nothing. A device that jobs hold reads what they were promised in
memory and what they really do in activity, with a little noise that is the same for the same seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_flows.devices.base import Reading
from gpu_flows.schedulers.model import Device, Node, all_devices

IDLE_MEMORY_MB = 4.0  # what a driver keeps for itself
WHOLE_DEVICE_SHARE = 0.6  # of the memory, for a job that has the device to itself and named no amount
UNMEASURED_ACTIVITY = 80.0  # of a job whose activity nobody measures
IDLE_POWER_W, BUSY_POWER_W = 15.0, 250.0
IDLE_TEMPERATURE_C, BUSY_TEMPERATURE_C = 32.0, 78.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one job does to one device that it holds."""

    memory_mb: int = 0  # promised to it; 0 has the whole device, as in Job.memory_mb
    activity: float | None = None  # 0 to 100, as measured; None if nobody measures it
    processes: tuple[int, ...] = ()


class SimulatedDevices:
    """A DeviceSource. `load` says, at each reading, what the jobs on each device do."""

    name = "simulated"
    trouble = ""

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
        self._sick: dict[str, str] = {}

    def nodes(self) -> list[Node]:
        return list(self._nodes)

    def read(self) -> list[Reading]:
        with self._lock:
            self._readings_taken += 1
            taken, sick = self._readings_taken, dict(self._sick)
        try:
            load = self._load()
        except Exception:  # a reading never raises; what jobs do is then not known, the devices are well
            return [Reading(id, healthy=id not in sick, detail=sick.get(id, "")) for id in self._devices]
        return [
            self._reading(device, load.get(id, ()), random.Random(f"{self._seed} {id} {taken}"), sick.get(id))
            for id, device in self._devices.items()
        ]

    def set_health(self, device_id: str, healthy: bool, detail: str = "") -> None:
        """Declare a device sick, or well again."""
        if device_id not in self._devices:
            raise ValueError(f"There is no device {device_id}; there are {', '.join(self._devices)}.")
        with self._lock:
            if healthy:
                self._sick.pop(device_id, None)
            else:
                self._sick[device_id] = detail or "declared unhealthy"

    def news(self) -> list[Node] | None:
        return None

    def close(self) -> None:
        """Nothing to let go of."""

    @staticmethod
    def _reading(device: Device, jobs: Sequence[Load], noise: random.Random, sick: str | None) -> Reading:
        utilization = _utilization(jobs, noise)
        return Reading(
            device.id,
            utilization=utilization,
            memory_used_mb=_memory(device, jobs, noise),
            power_w=_between(IDLE_POWER_W, BUSY_POWER_W, utilization, noise.uniform(-3, 3)),
            temperature_c=_between(IDLE_TEMPERATURE_C, BUSY_TEMPERATURE_C, utilization, noise.uniform(-1, 1)),
            processes=tuple(process for job in jobs for process in job.processes),
            healthy=sick is None,
            detail=sick or "",
        )


def _utilization(jobs: Sequence[Load], noise: random.Random) -> float:
    """The jobs' activities together; sharing a device makes nobody use more than all of it."""
    if not jobs:
        return round(noise.uniform(0.0, 0.5), 1)
    activity = sum(UNMEASURED_ACTIVITY if job.activity is None else job.activity for job in jobs)
    return round(min(100.0, max(0.0, activity + noise.uniform(-2, 2))), 1)


def _memory(device: Device, jobs: Sequence[Load], noise: random.Random) -> float:
    """Never more than promised, as that is what the scheduler counts on."""
    promised = sum(job.memory_mb or WHOLE_DEVICE_SHARE * device.memory_mb for job in jobs)
    return round(min(max(IDLE_MEMORY_MB, promised * noise.uniform(0.97, 1.0)), device.memory_mb), 1)


def _between(idle: float, busy: float, utilization: float, noise: float) -> float:
    return round(idle + (busy - idle) * utilization / 100 + noise, 1)
