"""The devices of many Docker hosts: declared ones simulated, real ones read by a sampler on each host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpu_flows.devices.base import DeviceError, Reading
from gpu_flows.devices.container_probe import ContainerProbe
from gpu_flows.devices.nvml import NvmlDevices
from gpu_flows.devices.simulated import Load, SimulatedDevices
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.schedulers.model import Node


class DockerDevices:
    """A DeviceSource. A host that cannot be read now has no devices until it can."""

    name = "docker"

    def __init__(
        self,
        hosts: Iterable[Host],
        probe_image: str,
        owner: str,
        every_s: float,
        load: Callable[[], Mapping[str, Sequence[Load]]] = dict,
    ) -> None:
        listed = list(hosts)
        declared = [host.settings.declared_node() for host in listed if host.settings.gpus]
        self._simulated = SimulatedDevices(declared, load)
        self._real = {
            host.name: NvmlDevices(host.name, probe=ContainerProbe(host, probe_image, owner, every_s))
            for host in listed
            if not host.settings.gpus
        }
        self._racks = {host.name: host.settings.rack for host in listed}
        self._order = [host.name for host in listed]
        self._nodes = {node.name: node for node in declared}
        self._troubles: dict[str, str] = {}

    def nodes(self) -> list[Node]:
        for name in self._real:
            self._ask(name)
        if not self._nodes:
            raise DeviceError(" ".join(self._troubles.values()) or "No Docker host is listed.")
        return self._in_order()

    def read(self) -> list[Reading]:
        real = [reading for source in self._real.values() for reading in source.read()]
        return [*self._simulated.read(), *real]

    def news(self) -> list[Node] | None:
        """A host that could not be read before may have been heard of by now."""
        before = dict(self._nodes)
        for name in [name for name in self._real if name not in self._nodes]:
            self._ask(name, patient=False)
        return self._in_order() if self._nodes != before else None

    def close(self) -> None:
        for source in self._real.values():
            source.close()

    def _ask(self, name: str, patient: bool = True) -> None:
        try:
            (node,) = self._real[name].nodes(patient)
        except DeviceError as error:
            self._troubles[name] = str(error)
            return
        self._troubles.pop(name, None)
        self._nodes[name] = Node(name, node.devices, self._racks[name])

    @property
    def trouble(self) -> str:
        """Why some host's devices are not known."""
        return " ".join(self._troubles.values())

    def _in_order(self) -> list[Node]:
        return [self._nodes[name] for name in self._order if name in self._nodes]
