"""Sets of devices as bit sets, so that a forecast can keep thousands of them.

A set is an integer whose bit n stands for the n-th device, node by node, in declared order.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from gpu_flows.schedulers.cluster.bits import bit_positions, lowest_bits
from gpu_flows.schedulers.cluster.device_links import DeviceLinks
from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import MOST_REQUESTS, Cluster
from gpu_flows.schedulers.model import Device, Job

DeviceSet = int


class DeviceMap:
    """Converts between devices and sets of devices."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = cluster.nodes
        self._devices = [state.device for node in cluster.nodes.values() for state in node.devices]
        self._positions = {device.id: position for position, device in enumerate(self._devices)}
        self._node_devices: dict[str, DeviceSet] = {}
        self._accepted: dict[object, tuple[DeviceSet, frozenset[str]]] = {}
        self._linked: dict[str, tuple[int, DeviceLinks]] = {}  # node -> position of its first device, links
        first = 0
        for name, node in cluster.nodes.items():
            self._node_devices[name] = ((1 << len(node.devices)) - 1) << first
            if node.links:
                self._linked[name] = (first, node.links)
            first += len(node.devices)

    @staticmethod
    def for_cluster(cluster: Cluster) -> DeviceMap:
        """Return the cluster's map, which is valid until other nodes are declared."""
        known = _maps.get(cluster)
        if known is None or known._nodes is not cluster.nodes:
            known = _maps[cluster] = DeviceMap(cluster)
        return known

    def to_set(self, devices: Iterable[Device]) -> DeviceSet:
        """Return the set of these devices, without those that are no longer declared."""
        found = 0
        for device in devices:
            position = self._positions.get(device.id)
            if position is not None:
                found |= 1 << position
        return found

    def to_devices(self, devices: DeviceSet) -> tuple[Device, ...]:
        return tuple(self._devices[position] for position in bit_positions(devices))

    def to_nodes(self, devices: DeviceSet) -> NodeSet:
        """Return the set of the nodes that these devices are on."""
        found = 0
        for position in bit_positions(devices):
            found |= self._nodes[self._devices[position].node].bit
        return found

    def first(self, devices: DeviceSet, count: int) -> DeviceSet:
        """Return the first `count` devices of the set, or all if it has fewer. Of a node that has more of
        them than are taken from it, take those that are linked best."""
        chosen = lowest_bits(devices, count)
        if self._linked:
            for name in {self._devices[position].node for position in bit_positions(chosen)}:
                taken, here = chosen & self._node_devices[name], devices & self._node_devices[name]
                if name in self._linked and taken != here:
                    first, links = self._linked[name]
                    chosen ^= taken ^ links.choose(here >> first, taken.bit_count()) << first
        return chosen

    def on_node(self, node: str) -> DeviceSet:
        return self._node_devices[node]

    def idle(self, cluster: Cluster) -> DeviceSet:
        """Return the healthy devices without a holder on nodes that are up."""
        idle = 0
        for node in cluster.nodes_in(cluster.with_idle(1)):
            idle |= self.to_set(state.device for state in node.devices if state.healthy and not state.holders)
        return idle

    def unavailable(self, cluster: Cluster) -> DeviceSet:
        """Return the devices that are unhealthy or on a node that is down."""
        unavailable = 0
        for node in cluster.nodes.values():
            if not node.up:
                unavailable |= self.on_node(node.name)
            else:
                for state in node.devices:
                    if not state.healthy:
                        unavailable |= 1 << self._positions[state.device.id]
        return unavailable

    def accepted(self, job: Job, cluster: Cluster) -> DeviceSet:
        """Return the devices that the job accepts on nodes that could serve it."""
        return self._find_accepted(job, cluster)[0]

    def models(self, job: Job, cluster: Cluster) -> frozenset[str]:
        """Return the models of the devices that the job accepts."""
        return self._find_accepted(job, cluster)[1]

    def _find_accepted(self, job: Job, cluster: Cluster) -> tuple[DeviceSet, frozenset[str]]:
        found = self._accepted.get(job.request)
        if found is None:
            eligible, digits, models = cluster.eligible(job), [], set[str]()
            for node in cluster.nodes.values():
                accepts_all = eligible.accepts_all & node.bit
                for state in node.devices:
                    accepts = eligible.nodes & node.bit and (accepts_all or job.accepts(state.device))
                    digits.append("1" if accepts else "0")
                    if accepts:
                        models.add(state.device.model)
            if len(self._accepted) > MOST_REQUESTS:
                self._accepted.clear()
            accepted = int("".join(reversed(digits)) or "0", 2)
            found = self._accepted[job.request] = (accepted, frozenset(models))
        return found


_maps: WeakKeyDictionary[Cluster, DeviceMap] = WeakKeyDictionary()
