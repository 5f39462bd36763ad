"""The devices of Docker hosts. Declared ones are simulated; real ones are read by a container on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpu_flows.devices.base import DeviceError, Reading
from gpu_flows.devices.container_probe import ContainerProbe
from gpu_flows.devices.nvml import NvmlDevices
from gpu_flows.devices.simulated import Load, SimulatedDevices
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.schedulers.model import Node


class DockerDevices:
    """A DeviceSource. A host that cannot be read has no devices until it can."""

    name = "docker"

    def __init__(
        self,
        hosts: Iterable[Host],
        probe_image: str,
        owner: str,
        every_s: float,
        load: Callable[[], Mapping[str, Sequence[Load]]] = dict,
    ) -> None:
        hosts = list(hosts)
        declared = [host.settings.declared_node() for host in hosts if host.settings.gpus]
        self._simulated = SimulatedDevices(declared, load)
        self._real = {
            host.name: NvmlDevices(host.name, probe=ContainerProbe(host, probe_image, owner, every_s))
            for host in hosts
            if not host.settings.gpus
        }
        self._racks = {host.name: host.settings.rack for host in hosts}
        self._nodes = {node.name: node for node in declared}
        self._problems: dict[str, str] = {}  # by host

    def nodes(self) -> list[Node]:
        for name in self._real:
            self._list_devices(name)
        if not self._nodes:
            raise DeviceError(self.problem or "No Docker host is listed.")
        return self._ordered_nodes()

    def read(self) -> list[Reading]:
        real = [reading for source in self._real.values() for reading in source.read()]
        return [*self._simulated.read(), *real]

    def changed_nodes(self) -> list[Node] | None:
        """Try the hosts again that could not be read so far."""
        before = dict(self._nodes)
        for name in [name for name in self._real if name not in self._nodes]:
            self._list_devices(name, wait_for_start=False)
        return self._ordered_nodes() if self._nodes != before else None

    @property
    def problem(self) -> str:
        return " ".join(self._problems.values())

    def close(self) -> None:
        for source in self._real.values():
            source.close()

    def _list_devices(self, name: str, wait_for_start: bool = True) -> None:
        try:
            (node,) = self._real[name].nodes(wait_for_start)
        except DeviceError as error:
            self._problems[name] = str(error)
            return
        self._problems.pop(name, None)
        self._nodes[name] = Node(name, node.devices, self._racks[name])

    def _ordered_nodes(self) -> list[Node]:
        """Return the known nodes in the order of the cluster block."""
        return [self._nodes[name] for name in self._racks if name in self._nodes]
