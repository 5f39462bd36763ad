"""The devices of Docker hosts. Declared ones are simulated; real ones are read by a container on the host."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_flows.devices.base import DeviceError, Reading
from gpu_flows.devices.claims import AllClaims, ClaimedDevices, Claims, HostClaims, MachineClaims
from gpu_flows.devices.container_probe import ContainerProbe
from gpu_flows.devices.nvml import NvmlDevices
from gpu_flows.devices.simulated import Load, SimulatedDevices
from gpu_flows.runtimes.docker.host import HEALTH_CHECK_S, Host
from gpu_flows.schedulers.model import Node

MEASURE_AGAIN_S = 30.0


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
        pool: str = "",
        is_leading: Callable[[], bool] = lambda: True,
    ) -> None:
        hosts = list(hosts)
        declared = [host.settings.declared_node() for host in hosts if host.settings.gpus]
        self._simulated = SimulatedDevices(declared, load)
        self._real = {
            host.name: ClaimedDevices(
                NvmlDevices(
                    host.name,
                    probe=ContainerProbe(host, probe_image, owner, every_s),
                    rack=host.settings.rack,
                ),
                _claims_on(host, owner, pool, is_leading),
            )
            for host in hosts
            if not host.settings.gpus
        }
        self._nodes = {node.name: node for node in declared}
        self._hosts = {host.name: host for host in hosts}
        self._sizes: dict[str, tuple[float, int]] = {}  # by host: processors and memory in MiB
        self._measure_at = 0.0
        self._returned: list[Node] = []
        self._problems: dict[str, str] = {}  # by host

    def nodes(self) -> list[Node]:
        for name in self._real:
            self._list_devices(name)
        self._measure_hosts(wait_s=HEALTH_CHECK_S)
        if not self._nodes:
            raise DeviceError(self.problem or "No Docker host is listed.")
        self._returned = self._sized_nodes()
        return self._returned

    def read(self) -> list[Reading]:
        self._measure_hosts()
        real = [reading for source in self._real.values() for reading in source.read()]
        return [*self._simulated.read(), *real]

    def changed_nodes(self) -> list[Node] | None:
        """Try the hosts again that could not be read so far."""
        before = self._returned
        for name, source in self._real.items():
            if name not in self._nodes:
                self._list_devices(name, wait_for_start=False)
            elif changed := source.changed_nodes():
                self._nodes[name] = changed[0]
        self._returned = self._sized_nodes()
        return self._returned if self._returned != before else None

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
        self._nodes[name] = node

    def _measure_hosts(self, wait_s: float = 0.0) -> None:
        """Read the processors and the memory of the hosts that have not been measured, in threads. Those of
        a host that does not answer are not counted until it does."""
        unknown = [host for name, host in self._hosts.items() if name not in self._sizes]
        if not unknown or time.monotonic() < self._measure_at:
            return
        self._measure_at = time.monotonic() + MEASURE_AGAIN_S
        threads = [threading.Thread(target=self._measure, args=(host,), daemon=True) for host in unknown]
        for thread in threads:
            thread.start()
        until = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _measure(self, host: Host) -> None:
        with contextlib.suppress(Exception):  # the host's health is watched elsewhere
            info = host.call_blocking(lambda api: api.info(), HEALTH_CHECK_S)
            self._sizes[host.name] = float(info.get("NCPU") or 0), int(info.get("MemTotal") or 0) // 2**20

    def _sized_nodes(self) -> list[Node]:
        """Return the known nodes in the order of the cluster block, with the size of their hosts."""
        nodes = [self._nodes[name] for name in self._hosts if name in self._nodes]
        sizes = [self._sizes.get(node.name, (0.0, 0)) for node in nodes]
        return [replace(node, cpus=cpus, ram_mb=ram) for node, (cpus, ram) in zip(nodes, sizes, strict=True)]


def _claims_on(host: Host, owner: str, pool: str, is_leading: Callable[[], bool]) -> Claims:
    on_host = HostClaims(host, owner, pool, is_leading)
    return AllClaims(MachineClaims(owner, pool), on_host) if host.settings.is_here else on_host
