"""Devices as bits: sets of them are whole numbers, so that a forecast can carry many of them along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job


def lowest(devices: int, count: int) -> int:
    chosen = 0
    while devices and count > 0:
        bit = devices & -devices
        chosen |= bit
        devices ^= bit
        count -= 1
    return chosen


class DeviceMap:
    """Which bit stands for which device: node by node, in declared order."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = cluster.nodes
        self._devices = [state.device for node in cluster.nodes.values() for state in node.devices]
        self._places = {device.id: place for place, device in enumerate(self._devices)}
        self._spans: dict[str, tuple[int, int]] = {}  # node -> its first place, and a 1 for each device
        self._accepted: dict[object, tuple[int, frozenset[str]]] = {}
        first = 0
        for name, node in cluster.nodes.items():
            self._spans[name] = (first, (1 << len(node.devices)) - 1)
            first += len(node.devices)

    @staticmethod
    def of(cluster: Cluster) -> DeviceMap:
        """The cluster's map. It holds until other nodes are declared."""
        known = _maps.get(cluster)
        if known is None or known._nodes is not cluster.nodes:
            known = _maps[cluster] = DeviceMap(cluster)
        return known

    def set_of(self, devices: Iterable[Device]) -> int:
        """Their bits. A device that is not declared any more has none."""
        found = 0
        for device in devices:
            place = self._places.get(device.id)
            if place is not None:
                found |= 1 << place
        return found

    def devices_in(self, devices: int) -> tuple[Device, ...]:
        return tuple(self._devices[place] for place in places(devices))

    def nodes_of(self, devices: int) -> int:
        """The set of nodes, as the cluster counts them, that these devices are on."""
        found = 0
        for place in places(devices):
            found |= self._nodes[self._devices[place].node].bit
        return found

    def on(self, node: str) -> int:
        first, ones = self._spans[node]
        return ones << first

    def idle(self, cluster: Cluster) -> int:
        idle = 0
        for node in cluster.those(cluster.with_idle(1)):
            idle |= self.set_of(state.device for state in node.devices if state.healthy and not state.holders)
        return idle

    def broken(self, cluster: Cluster) -> int:
        broken = 0
        for node in cluster.nodes.values():
            if not node.up:
                broken |= self.on(node.name)
            else:
                for state in node.devices:
                    if not state.healthy:
                        broken |= 1 << self._places[state.device.id]
        return broken

    def accepted(self, job: Job, cluster: Cluster) -> int:
        return self._wants(job, cluster)[0]

    def models(self, job: Job, cluster: Cluster) -> frozenset[str]:
        return self._wants(job, cluster)[1]

    def _wants(self, job: Job, cluster: Cluster) -> tuple[int, frozenset[str]]:
        """The devices that the job accepts on nodes that are able to serve it, and their models."""
        found = self._accepted.get(job.request)
        if found is None:
            able, digits, models = cluster.able(job), [], set[str]()
            for node in cluster.nodes.values():
                pure = able.pure & node.bit
                for state in node.devices:
                    fits = able.nodes & node.bit and (pure or job.accepts(state.device))
                    digits.append("1" if fits else "0")
                    if fits:
                        models.add(state.device.model)
            if len(self._accepted) > 10_000:  # asks come and go in a pool that runs for months
                self._accepted.clear()
            accepted = int("".join(reversed(digits)) or "0", 2)
            found = self._accepted[job.request] = (accepted, frozenset(models))
        return found


def places(devices: int) -> Iterator[int]:
    while devices:
        bit = devices & -devices
        yield bit.bit_length() - 1
        devices ^= bit


_maps: WeakKeyDictionary[Cluster, DeviceMap] = WeakKeyDictionary()
