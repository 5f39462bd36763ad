"""Notices devices that jobs hold and do not use, from the readings of the devices.

A device is idle if jobs have held it for a while and no reading in that time reached a certain utilization.
It is busy again with the first reading that does. A device that does not report its utilization is neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpu_flows.devices.base import Reading
from gpu_flows.schedulers.engine import Engine


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """From when on a held device counts as idle."""

    percent: float = 5.0
    """Utilization below this is none."""
    minutes: float = 30.0
    """For so long. 0 notices nothing."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A held device became idle, or busy again."""

    kind: Literal["idle", "busy"]
    at: float
    device: str
    node: str
    jobs: tuple[str, ...]
    utilization: float
    idle_s: float
    """How long it had been idle."""


@dataclass(slots=True)
class _Unused:
    jobs: tuple[str, ...]
    since: float
    told: bool = False


class IdleWatch:
    def __init__(self, engine: Engine, limit: IdleLimit | None = None) -> None:
        self._engine, self.limit = engine, limit or IdleLimit()
        self._unused: dict[str, _Unused] = {}  # by device: held, and below the limit in every reading

    def add(self, at: float, readings: Iterable[Reading]) -> list[DeviceUse]:
        """Return which devices became idle or busy with these readings."""
        found = (self._judge(at, reading.device_id, reading.utilization) for reading in readings)
        return [change for change in found if change]

    def _judge(self, at: float, device: str, utilization: float | None) -> DeviceUse | None:
        state, unused = self._engine.cluster.devices.get(device), self._unused.get(device)
        jobs = tuple(state.holders) if state else ()
        if not state or not jobs or utilization is None or (unused and unused.jobs != jobs):
            self._unused.pop(device, None)
            return None
        node = state.device.node
        if utilization >= self.limit.percent:
            self._unused.pop(device, None)
            if not unused or not unused.told:
                return None
            return DeviceUse("busy", at, device, node, jobs, utilization, at - unused.since)
        unused = self._unused.setdefault(device, _Unused(jobs, at))
        idle_s = at - unused.since
        if unused.told or not self.limit.minutes or idle_s < 60 * self.limit.minutes:
            return None
        unused.told = True
        return DeviceUse("idle", at, device, node, jobs, utilization, idle_s)
