"""The pool's devices: where they come from, and what each reading of them leads to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu_flows.analytics.facts import DeviceEvent, DeviceSeen, Sampled
from gpu_flows.blocks.cluster import GpuCluster
from gpu_flows.devices.base import DeviceError, DeviceSource, NoDevices, Reading
from gpu_flows.devices.docker import DockerDevices
from gpu_flows.devices.nvml import NvmlDevices
from gpu_flows.devices.simulated import Load, SimulatedDevices
from gpu_flows.runtimes.base import Runtime
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Node, all_devices


def open_devices(
    cluster: GpuCluster,
    load: Callable[[], Mapping[str, Sequence[Load]]] = dict,
    hosts: Sequence[Host] = (),
    owner: str = "",
    every_s: float = 1.0,
) -> tuple[DeviceSource, list[Node]]:
    """The devices that a cluster block means, on this machine or on its Docker hosts. May take as long as a
    driver takes to wake. Only a machine that has no GPU at all is simulated: one whose NVML fails is an
    error."""
    if cluster.hosts:
        source = DockerDevices(hosts, cluster.containers.probe_image, owner, every_s, load)
        try:
            return source, source.nodes()
        except DeviceError:
            source.close()
            raise
    if cluster.devices != "declared":
        real = NvmlDevices()
        try:
            return real, real.nodes()
        except DeviceError as error:
            real.close()
            if cluster.devices == "real" or not isinstance(error, NoDevices):
                raise
    nodes = cluster.declared_nodes()
    return SimulatedDevices(nodes, load), nodes


class Telemetry:
    """Feeds readings to the engine and to the record. Its methods run in the worker's loop,
    except `load`, which the sampler's thread calls."""

    def __init__(self, pool: str, engine: Engine, runtime: Runtime, record: Callable[..., None]) -> None:
        self._pool, self._engine, self._runtime, self._record = pool, engine, runtime, record
        self.latest: dict[str, Reading] = {}

    def adopt(self, nodes: list[Node], now: float) -> None:
        """Take these as the pool's devices, and note which came and which went."""
        before = {id: s.device for id, s in self._engine.cluster.devices.items() if s.healthy}
        self._engine.set_nodes(nodes)
        self._record(
            *(
                DeviceSeen(d.id, self._pool, d.node, d.index, d.model, d.memory_mb, now)
                for d in all_devices(nodes)
            )
        )
        listed = {device.id for device in all_devices(nodes)}
        gone = [device for id, device in before.items() if id not in listed]
        self._record(*(DeviceEvent(now, d.id, d.node, "gone", "no longer declared") for d in gone))
        came = [device for device in all_devices(nodes) if device.id not in before]
        self._record(*(DeviceEvent(now, d.id, d.node, "healthy") for d in came if before))

    def take(self, at: float, readings: list[Reading]) -> None:
        """Note these readings."""
        self.latest = {reading.device_id: reading for reading in readings}
        for reading in readings:
            if self._engine.set_health(reading.device_id, reading.healthy, reading.detail):
                device = self._engine.cluster.devices[reading.device_id].device
                kind = "healthy" if reading.healthy else "sick"
                self._record(DeviceEvent(at, device.id, device.node, kind, reading.detail))
        self._engine.observe({r.device_id: r.utilization for r in readings if r.utilization is not None})
        self._record(
            *(
                Sampled(at, r.device_id, r.utilization, r.memory_used_mb, r.power_w, r.temperature_c)
                for r in readings
            )
        )

    def load(self) -> dict[str, list[Load]]:
        """What the jobs on each device do now, for devices that exist only by declaration."""
        activity = self._runtime.activity()
        loads: dict[str, list[Load]] = {}
        for running in list(self._engine.running.values()):
            for device in running.devices:
                share = Load(running.job.memory_mb, activity.get(running.job.id, 0.0))
                loads.setdefault(device.id, []).append(share)
        return loads
