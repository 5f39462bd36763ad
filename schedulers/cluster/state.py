"""The state of the whole cluster: which jobs hold which devices, and which nodes have devices left.

Sets of nodes are bit sets (`NodeSet`), so that a policy finds the nodes with room among thousands
in a few operations. The cluster keeps them up to date with every allocation and release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_flows.schedulers.cluster.node_state import ABSENT, DeviceState, NodeSet, NodeState, RackState
from gpu_flows.schedulers.model import Device, Job, Node, Tier
from gpu_flows.schedulers.network.shape import Shape, tier_of

MOST_REQUESTS = 10_000  # cached requests: a pool that runs for months sees ever new ones


@dataclass(frozen=True, slots=True)
class Eligibility:
    """What an empty, healthy cluster could offer to every job with the same request."""

    nodes: NodeSet  # with enough devices that the job accepts; with any, if it may span nodes
    accepts_all: NodeSet  # nodes of which the job accepts every device
    most_gpus: int  # the most devices it could hold at the same time


class Cluster:
    """Every node and device. Only the engine and its drafts change it."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: dict[str, NodeState] = {}
        self.devices: dict[str, DeviceState] = {}
        self.racks: dict[str, RackState] = {}
        self.version = 0  # increases with every change, see `changed_since`
        self.idle = 0  # healthy devices without a holder on nodes that are up
        self.linked: NodeSet = 0  # nodes on which it matters which devices a job gets
        self._order: list[NodeState] = []  # by bit
        self._alike: list[tuple[NodeState, NodeSet]] = []  # nodes with the same devices, and one of them
        self._changed: dict[str, NodeState] = {}  # every node that ever changed, the latest change last
        self._at_least: list[NodeSet] = [0]  # [n]: the nodes that are up with n or more idle devices
        self._eligible: dict[object, Eligibility] = {}
        self.service_version = 0  # increases if devices are declared, or go into or out of service
        self._healthy: bool | None = None  # None: not known, see `is_healthy`
        self._could_hold_now: dict[object, bool] = {}  # by request, of this service version
        self._held: dict[str, tuple[Job, tuple[Device, ...]]] = {}
        self.set_nodes(nodes)

    def __iter__(self) -> Iterator[NodeState]:
        """The nodes that are up, in declared order."""
        return (node for node in self._order if node.up)

    # -- nodes and devices --------------------------------------------------------------------

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Replace the declared nodes. A device that is still declared keeps its holders; any other
        device is removed when its last holder releases it."""
        old_devices, old_nodes = self.devices, self.nodes
        self.nodes, self.devices, self.racks, self._order, self._changed = {}, {}, {}, [], {}
        for node in nodes:
            states = []
            for device in node.devices:
                state = DeviceState(device)
                if device.id in old_devices:
                    _carry_over(old_devices[device.id], state)
                states.append(state)
                self.devices[device.id] = state
            rack = self.racks.setdefault(node.rack, RackState(node.rack))
            new = self.nodes[node.name] = NodeState(node, states, 1 << len(self._order), rack)
            self._order.append(new)
            rack.nodes |= new.bit
            if node.name in old_nodes:
                old = old_nodes[node.name]
                new.up, new.detail = old.up, old.detail
        for device_id, state in old_devices.items():
            if device_id not in self.devices and state.holders:
                state.healthy, state.detail = False, ABSENT
                self.devices[device_id] = state
        for job, devices in list(self._held.values()):  # a device may now belong to another node
            held = tuple(self.devices[device.id].device for device in devices)
            self._held[job.id] = (job, held)
            self._charge_hosts(job, held, 1)
        self.linked = sum(node.bit for node in self._order if node.links)
        self._alike = _group_alike(self._order)
        self._eligible.clear()
        self._change_service()
        self._recount_idle()

    def track_device(self, device: Device) -> DeviceState:
        """Return the device's state. Add the device if it is not declared, since a job may hold it."""
        if device.id not in self.devices:
            state = self.devices[device.id] = DeviceState(device)
            state.healthy, state.detail = False, ABSENT
            self._healthy = None
        return self.devices[device.id]

    def mark_node(self, name: str, up: bool, detail: str = "") -> None:
        node = self.nodes[name]
        if node.up != up:
            self._change_service()
        node.up, node.detail = up, detail
        self._recount_idle()
        self._record_change(tuple(state.device for state in node.devices[:1]))

    def mark_device(self, device_id: str, healthy: bool, detail: str = "") -> bool:
        """Set the device's health. Return whether that is a change."""
        state = self.devices.get(device_id)
        if state is None or state.healthy == healthy or state.detail == ABSENT:
            return False
        state.healthy, state.detail = healthy, detail
        node = self.nodes[state.device.node]
        if not state.holders:
            self._set_idle(node, node.idle + (1 if healthy else -1))
        self._record_change((state.device,))
        self._change_service()
        return True

    def _change_service(self) -> None:
        self._healthy = None
        self.service_version += 1
        self._could_hold_now.clear()

    def _recount_idle(self) -> None:
        """Compute all sets and sums of idle devices. Only rare changes need this."""
        self._healthy = None
        most = max((len(node.devices) for node in self._order), default=0)
        self._at_least = [0] * (most + 2)
        self.idle = 0
        for rack in self.racks.values():
            rack.idle = 0
        for node in self._order:
            if node.up:
                self.idle += node.idle
                node.rack.idle += node.idle
                for count in range(node.idle + 1):
                    self._at_least[count] |= node.bit

    def _set_idle(self, node: NodeState, idle: int) -> None:
        before, node.idle = node.idle, idle
        if node.up:
            self.idle += idle - before
            node.rack.idle += idle - before
            for count in range(min(before, idle) + 1, max(before, idle) + 1):
                self._at_least[count] ^= node.bit

    def _record_change(self, devices: tuple[Device, ...]) -> None:
        self.version += 1
        changed, name = self._changed, ""
        for device in devices:
            if device.node != name:
                name = device.node
                node = self.nodes.get(name)
                if node is not None:
                    node.changed_at = self.version
                    changed.pop(name, None)
                    changed[name] = node

    # -- allocations --------------------------------------------------------------------------

    def allocation_error(self, job: Job, devices: tuple[Device, ...]) -> str:
        """Return why the job must not hold exactly these devices; empty if it may."""
        count = len(devices)
        if count != job.gpus and not job.least <= count <= job.most:
            return f"job {job.id} asks for {job.gpus} devices, not {count}"
        if count > 1:
            if len({device.id for device in devices}) != count:
                return f"job {job.id} was given a device twice"
            if not job.may_span_nodes and len({device.node for device in devices}) > 1:
                return f"job {job.id} does not allow devices on several nodes"
        for device in devices:
            state = self.devices.get(device.id)
            if state is None or (state.device is not device and state.device != device):
                return f"device {device.id} is not part of the cluster"
            node = self.nodes.get(device.node)
            if node is None or not node.up:
                return f"node {device.node} is down"
            if not job.accepts(device):
                return f"job {job.id} does not accept device {device.id}"
            if not state.fits(job):
                return f"device {device.id} has no room for job {job.id}"
            if (job.cpus or job.ram_mb) and not node.has_host_room(job):
                return f"node {device.node} has too little processor time or memory left for job {job.id}"
        return ""

    def allocate(self, job: Job, devices: tuple[Device, ...]) -> None:
        """Let the job hold these devices. The caller has checked that it may."""
        if job.id in self._held:
            raise ValueError(f"job {job.id} holds devices already")
        for device in devices:
            state = self.devices.get(device.id) or self.track_device(device)
            if not state.holders and state.healthy:
                node = self.nodes.get(device.node)
                if node is not None:
                    self._set_idle(node, node.idle - 1)
            share = job.memory_mb or state.device.memory_mb
            state.holders[job.id] = share
            state.exclusive = not job.memory_mb
            state.free_mb -= share
        self._held[job.id] = (job, devices)
        self._record_change(devices)
        self._charge_hosts(job, devices, 1)

    def release(self, job: Job) -> None:
        """Free every device that the job holds."""
        _, devices = self._held.pop(job.id, (job, ()))
        for device in devices:
            state = self.devices[device.id]
            state.free_mb += state.holders.pop(job.id)
            if state.holders:
                continue
            node = self.nodes.get(device.node)
            if state.detail == ABSENT:
                del self.devices[device.id]
            elif node is not None and state.healthy:
                self._set_idle(node, node.idle + 1)
        self._record_change(devices)
        self._charge_hosts(job, devices, -1)

    def _charge_hosts(self, job: Job, devices: tuple[Device, ...], times: int) -> None:
        """Charge (1) or refund (-1) the processors and host memory on each node of the job."""
        if job.cpus or job.ram_mb:
            for name in {device.node for device in devices} & self.nodes.keys():
                self.nodes[name].free_cpus -= times * job.cpus
                self.nodes[name].free_ram_mb -= times * job.ram_mb

    # -- queries ------------------------------------------------------------------------------

    def eligible(self, job: Job) -> Eligibility:
        """Return which nodes could serve the job on an empty, healthy cluster."""
        request = job.request
        found = self._eligible.get(request)
        if found is None:
            if len(self._eligible) > MOST_REQUESTS:
                self._eligible.clear()
            alike = [(node, node.bit) for node in self._order] if job.nodes else self._alike
            found = self._eligible[request] = _find_eligibility(job, alike)
        return found

    def could_hold(self, job: Job) -> bool:
        """Whether an empty, healthy cluster has all devices that the job asks for. Fewer are not
        enough for an elastic job either, because not every policy starts it with fewer."""
        return self.eligible(job).most_gpus >= job.gpus

    def could_hold_now(self, job: Job) -> bool:
        """Whether the cluster would have all devices that the job asks for if it were empty, without those
        that are unhealthy or on nodes that are down."""
        if self.is_healthy:
            return self.could_hold(job)
        request = job.request
        if request not in self._could_hold_now:
            if len(self._could_hold_now) > MOST_REQUESTS:
                self._could_hold_now.clear()
            most = _find_eligibility(job, [(node, node.bit) for node in self], in_service=True).most_gpus
            self._could_hold_now[request] = most >= job.gpus
        return self._could_hold_now[request]

    @property
    def is_healthy(self) -> bool:
        """Whether every device is declared and healthy, and every node up."""
        if self._healthy is None:
            healthy = all(state.healthy for state in self.devices.values())
            self._healthy = healthy and all(node.up for node in self._order)
        return self._healthy

    @property
    def memory_sizes(self) -> set[int]:
        """The memory sizes of all devices, in MiB."""
        return {state.device.memory_mb for state in self.devices.values()}

    def with_idle(self, count: int) -> NodeSet:
        """Return the nodes that are up and have at least `count` idle devices."""
        return self._at_least[count] if count < len(self._at_least) else 0

    def group_by_idle(self, nodes: NodeSet, least: int = 0) -> list[tuple[int, NodeSet]]:
        """Group those of the nodes that are up by their number of idle devices, from `least` upward:
        a list of (idle, nodes)."""
        at_least, groups = self._at_least, []
        left = nodes & self.with_idle(least)
        while left:
            more = left & at_least[least + 1]
            if more != left:
                groups.append((least, left ^ more))
            left, least = more, least + 1
        return groups

    def changed_since(self, version: int) -> Iterator[NodeState]:
        """Yield the nodes that went up or down, or have a device that changed its holders or health, after
        that version, the latest change first."""
        for node in reversed(self._changed.values()):
            if node.changed_at <= version:
                return
            yield node

    def nodes_in(self, nodes: NodeSet) -> Iterator[NodeState]:
        """Yield the nodes of the set in declared order."""
        while nodes:
            bit = nodes & -nodes
            yield self._order[bit.bit_length() - 1]
            nodes ^= bit

    def shape(self, devices: Iterable[Device]) -> Shape:
        """Return how these devices lie in racks and nodes. Those of nodes that are no longer declared, which
        a running job may hold, do not count: their racks are unknown."""
        racks: dict[RackState, dict[str, int]] = {}
        for device in devices:
            node = self.nodes.get(device.node)
            if node is not None:
                counts = racks.setdefault(node.rack, {})
                counts[device.node] = counts.get(device.node, 0) + 1
        return tuple(sorted(tuple(sorted(counts.values())) for counts in racks.values()))

    def tier(self, devices: Iterable[Device]) -> Tier:
        """Return the widest part of the network through which these devices communicate, as far as their
        nodes are declared."""
        return tier_of(self.shape(devices))

    def node_set(self, names: Iterable[str]) -> NodeSet:
        """Return the set of the nodes with these names."""
        nodes = 0
        for name in names:
            if name in self.nodes:
                nodes |= self.nodes[name].bit
        return nodes


def _group_alike(nodes: Iterable[NodeState]) -> list[tuple[NodeState, NodeSet]]:
    """Group the nodes with the same devices: a job that names no nodes accepts all of a group, or none."""
    groups: dict[object, tuple[NodeState, NodeSet]] = {}
    for node in nodes:
        devices = tuple((state.device.model, state.device.memory_mb) for state in node.devices)
        key = (node.node.cpus, node.node.ram_mb, devices)
        first, others = groups.get(key, (node, 0))
        groups[key] = (first, others | node.bit)
    return list(groups.values())


def _find_eligibility(
    job: Job, alike: Iterable[tuple[NodeState, NodeSet]], in_service: bool = False
) -> Eligibility:
    eligible = accepts_all = most = 0
    for node, nodes in alike:
        accepted = sum(
            job.accepts(state.device) and (state.healthy or not in_service) for state in node.devices
        )
        has_host_room = (not node.node.cpus or job.cpus <= node.node.cpus) and (
            not node.node.ram_mb or job.ram_mb <= node.node.ram_mb
        )
        if accepted and has_host_room:
            most = most + accepted * nodes.bit_count() if job.may_span_nodes else max(most, accepted)
            if job.may_span_nodes or accepted >= job.least:
                eligible |= nodes
            if accepted == len(node.devices):
                accepts_all |= nodes
    return Eligibility(eligible, accepts_all, most)


def _carry_over(old: DeviceState, new: DeviceState) -> None:
    new.holders, new.exclusive, new.utilization = old.holders, old.exclusive, old.utilization
    new.healthy, new.detail = old.healthy, old.detail
    new.free_mb -= sum(old.holders.values())
    if old.detail == ABSENT:
        new.healthy, new.detail = True, ""
