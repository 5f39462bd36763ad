"""Opens the source of devices that a cluster block asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu_flows.blocks.cluster import GpuCluster
from gpu_flows.devices.base import DeviceError, DeviceSource, NoDevices
from gpu_flows.devices.claims import ClaimedDevices, MachineClaims
from gpu_flows.devices.docker import DockerDevices
from gpu_flows.devices.nvml import NvmlDevices
from gpu_flows.devices.simulated import Load, SimulatedDevices
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.schedulers.model import Node


def open_devices(
    cluster: GpuCluster,
    load: Callable[[], Mapping[str, Sequence[Load]]] = dict,
    hosts: Sequence[Host] = (),
    owner: str = "",
    every_s: float = 1.0,
    pool: str = "",
    is_leading: Callable[[], bool] = lambda: True,
) -> tuple[DeviceSource, list[Node]]:
    """Return an open source and its nodes, on this machine or on the Docker hosts of the cluster.

    It blocks while a driver starts. Real GPUs are claimed for the pool, which `owner` identifies; while
    `is_leading` is False, closing the source releases none that another worker of the pool may use. Declared
    devices replace real ones only on a machine without any GPU; a machine whose NVML fails is an error.
    """
    if cluster.hosts:
        source = DockerDevices(hosts, cluster.containers.probe_image, owner, every_s, load, pool, is_leading)
        try:
            return source, source.nodes()
        except DeviceError:
            source.close()
            raise
    if cluster.devices != "declared":
        real = ClaimedDevices(NvmlDevices(rack=cluster.rack), MachineClaims(owner, pool), cluster.real_gpus)
        try:
            return real, real.nodes()
        except DeviceError as error:
            real.close()
            if cluster.devices == "real" or not isinstance(error, NoDevices):
                raise
    nodes = cluster.declared_nodes()
    return SimulatedDevices(nodes, load), nodes
