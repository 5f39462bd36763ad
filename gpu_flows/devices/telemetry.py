"""Passes what a source of devices reports to the engine and to the history.

The sampler (`sampler.py`) delivers readings at a fixed interval; Telemetry decides what each of them changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpu_flows.analytics.facts import DeviceEvent, DeviceSeen, NodeSeen, Sampled
from gpu_flows.devices.base import Reading
from gpu_flows.devices.simulated import Load
from gpu_flows.devices.simulated_memory import SimulatedMemory
from gpu_flows.runtimes.base import Runtime, attempt_id
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Node, all_devices


class Telemetry:
    """The devices of one pool, for the engine and the history. All methods run in the worker's event loop,
    except `load`, which the sampler's thread calls."""

    def __init__(
        self,
        pool: str,
        engine: Engine,
        runtime: Runtime,
        record: Callable[..., None],
        memory: SimulatedMemory | None = None,
    ) -> None:
        self._pool, self._engine, self._runtime, self._record = pool, engine, runtime, record
        self._memory = memory  # of simulated devices
        self.latest: dict[str, Reading] = {}

    def set_nodes(self, nodes: list[Node], now: float) -> None:
        """Make these the devices of the pool, and record which were added and which were removed."""
        before = {id: s.device for id, s in self._engine.cluster.devices.items() if s.healthy}
        known = _describe(state.node for state in self._engine.cluster.nodes.values())
        devices = all_devices(nodes)
        self._engine.set_nodes(nodes)
        seen = [NodeSeen.of(node, position, self._pool, now) for position, node in enumerate(nodes)]
        described = _describe(nodes)
        self._record(*(fact for fact in seen if known.get(fact.node) != described[fact.node]))
        self._record(
            *(DeviceSeen(d.id, self._pool, d.node, d.index, d.model, d.memory_mb, now) for d in devices)
        )
        listed = {device.id for device in devices}
        removed = [device for id, device in before.items() if id not in listed]
        self._record(*(DeviceEvent(now, d.id, d.node, "gone", "no longer declared") for d in removed))
        added = [device for device in devices if device.id not in before]
        self._record(*(DeviceEvent(now, d.id, d.node, "healthy") for d in added if before))

    def add_readings(self, at: float, readings: list[Reading]) -> None:
        """Update the health and utilization of the devices, and record the readings."""
        self.latest = {reading.device_id: reading for reading in readings}
        for reading in readings:
            if self._engine.set_health(reading.device_id, reading.healthy, reading.detail):
                device = self._engine.cluster.devices[reading.device_id].device
                kind = "healthy" if reading.healthy else "sick"
                self._record(DeviceEvent(at, device.id, device.node, kind, reading.detail))
        self._engine.set_utilization(
            {r.device_id: r.utilization for r in readings if r.utilization is not None}
        )
        self._record(
            *(
                Sampled(at, r.device_id, r.utilization, r.memory_used_mb, r.power_w, r.temperature_c)
                for r in readings
            )
        )

    def load(self) -> dict[str, list[Load]]:
        """Return what the jobs on each device do now, for simulated devices."""
        activity = self._runtime.sample_activity()
        loads: dict[str, list[Load]] = {}
        for running in list(self._engine.running.values()):
            for device in running.devices:
                allocated = self._find_allocated(device.id, attempt_id(running.job.id, running.attempt))
                share = Load(running.job.memory_mb, activity.get(running.job.id, 0.0), allocated_mb=allocated)
                loads.setdefault(device.id, []).append(share)
        return loads

    def _find_allocated(self, device_id: str, attempt: str) -> float | None:
        return self._memory.used(device_id).get(attempt) if self._memory else None


def _describe(nodes: Iterable[Node]) -> dict[str, tuple[object, ...]]:
    """Return what is recorded of the nodes themselves, by name."""
    return {
        node.name: (position, node.rack, node.cpus, node.ram_mb, node.links)
        for position, node in enumerate(nodes)
    }
