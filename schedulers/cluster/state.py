"""The devices and who holds them, kept up to date move by move.

Memory is the currency: a job that asks for so many MiB is promised them, a job that asks for
whole devices is promised all there is. What is promised never exceeds what a device has.

Sets of nodes are whole numbers, a bit a node in declared order: "at least four idle devices" and
"has what this job accepts" are one such number each, so the first node that is both is found in a
fraction of a microsecond, with ten thousand of them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_flows.schedulers.model import Device, Job, Node


class DeviceState:
    """One device: what is promised on it, whether it may be used, how busy it last was."""

    __slots__ = ("detail", "device", "free_mb", "healthy", "holders", "utilization", "whole")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.holders: dict[str, int] = {}  # job id -> MiB promised
        self.whole = False  # whether its holder asked for all of it, however much that is
        self.free_mb = device.memory_mb
        self.healthy = True
        self.detail = ""
        self.utilization = 0.0

    def has_room(self, job: Job) -> bool:
        """Whether the job's share can be promised here without breaking another promise."""
        return not self.holders or (not self.whole and 0 < job.memory_mb <= self.free_mb)

    def fits(self, job: Job) -> bool:
        """Whether the job may start here now."""
        return self.healthy and self.has_room(job)


ABSENT = "not part of the cluster"


class RackState:
    """Nodes near each other, as a set, and how many of their devices are up, healthy and idle."""

    __slots__ = ("idle", "name", "nodes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes = 0
        self.idle = 0


class NodeState:
    """One node's devices in index order, and how many of them nobody holds."""

    __slots__ = (
        "bit",
        "changed",
        "detail",
        "devices",
        "free_cpus",
        "free_ram_mb",
        "idle",
        "name",
        "node",
        "rack",
        "up",
    )

    def __init__(self, node: Node, devices: list[DeviceState], bit: int, rack: RackState) -> None:
        self.node = node
        self.name = node.name
        self.devices = devices
        self.bit = bit
        self.rack = rack
        self.changed = 0  # the moment of the cluster at which its devices last changed hands or health
        self.up = True
        self.detail = ""
        self.idle = sum(1 for state in devices if state.healthy and not state.holders)
        self.free_cpus = node.cpus
        self.free_ram_mb = node.ram_mb

    def has_host_room(self, job: Job) -> bool:
        """Whether processors and memory beside the devices suffice, where they are counted."""
        node = self.node
        return not (
            (node.cpus and job.cpus > self.free_cpus + 1e-9)
            or (node.ram_mb and job.ram_mb > self.free_ram_mb)
        )


@dataclass(frozen=True, slots=True)
class Able:
    """What could serve everybody with one ask, were it free."""

    nodes: int  # those with enough devices it accepts (with any at all, if it may span nodes)
    pure: int  # those where it accepts every device
    most: int  # how many devices it could ever have at once


class Cluster:
    """Every node and device. Only the engine and its drafts move anything in here."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: dict[str, NodeState] = {}
        self.devices: dict[str, DeviceState] = {}
        self.racks: dict[str, RackState] = {}
        self.moment = 0  # counts the changes, see `changed_since`
        self.idle = 0  # devices that are up, healthy and held by nobody
        self._order: list[NodeState] = []  # by bit
        self._latest: dict[str, NodeState] = {}  # those ever changed, the latest last
        self._at_least: list[int] = [0]  # [n]: the nodes that are up with n or more idle devices
        self._able: dict[object, Able] = {}
        self._sound: bool | None = None  # None: to be looked at
        self._held: dict[str, tuple[Job, tuple[Device, ...]]] = {}
        self.replace(nodes)

    def __iter__(self) -> Iterator[NodeState]:
        """The nodes that are up, in declared order."""
        return (node for node in self._order if node.up)

    # -- what there is ------------------------------------------------------------------------

    def replace(self, nodes: Iterable[Node]) -> None:
        """Take a new declaration. A device that is still declared keeps its holders; one that is
        not is forgotten once nobody holds it."""
        before, old_nodes = self.devices, self.nodes
        self.nodes, self.devices, self.racks, self._order, self._latest = {}, {}, {}, [], {}
        for node in nodes:
            states = []
            for device in node.devices:
                state = DeviceState(device)
                if device.id in before:
                    _carry_over(before[device.id], state)
                states.append(state)
                self.devices[device.id] = state
            rack = self.racks.setdefault(node.rack, RackState(node.rack))
            new = self.nodes[node.name] = NodeState(node, states, 1 << len(self._order), rack)
            self._order.append(new)
            rack.nodes |= new.bit
            if node.name in old_nodes:
                old = old_nodes[node.name]
                new.up, new.detail = old.up, old.detail
        for device_id, state in before.items():
            if device_id not in self.devices and state.holders:
                state.healthy, state.detail = False, ABSENT
                self.devices[device_id] = state
        for job, devices in list(self._held.values()):  # a device may have come to another node
            held = tuple(self.devices[device.id].device for device in devices)
            self._held[job.id] = (job, held)
            self._charge_hosts(job, held, 1)
        self._able.clear()
        self._count()

    def remember(self, device: Device) -> DeviceState:
        """The device's state, also of one that is not declared (any more) but that a job holds."""
        if device.id not in self.devices:
            state = self.devices[device.id] = DeviceState(device)
            state.healthy, state.detail = False, ABSENT
            self._sound = None
        return self.devices[device.id]

    def set_node(self, name: str, up: bool, detail: str = "") -> None:
        self.nodes[name].up, self.nodes[name].detail = up, detail
        self._count()

    def set_health(self, device_id: str, healthy: bool, detail: str = "") -> bool:
        """Whether anything changed."""
        state = self.devices.get(device_id)
        if state is None or state.healthy == healthy or state.detail == ABSENT:
            return False
        state.healthy, state.detail = healthy, detail
        node = self.nodes[state.device.node]
        if not state.holders:
            self._set_idle(node, node.idle + (1 if healthy else -1))
        self._note_change((state.device,))
        self._sound = None
        return True

    def _count(self) -> None:
        """The sets and sums anew, after a change that is too rare to follow step by step."""
        self._sound = None
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

    def _note_change(self, devices: tuple[Device, ...]) -> None:
        self.moment += 1
        latest, name = self._latest, ""
        for device in devices:
            if device.node != name:
                name = device.node
                node = self.nodes.get(name)
                if node is not None:
                    node.changed = self.moment
                    latest.pop(name, None)
                    latest[name] = node

    # -- who holds what -----------------------------------------------------------------------

    def objection(self, job: Job, devices: tuple[Device, ...]) -> str:
        """Why the job must not have exactly these devices; empty if it may."""
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

    def take(self, job: Job, devices: tuple[Device, ...]) -> None:
        if job.id in self._held:
            raise ValueError(f"job {job.id} holds devices already")
        for device in devices:
            state = self.devices.get(device.id) or self.remember(device)
            if not state.holders and state.healthy:
                node = self.nodes.get(device.node)
                if node is not None:
                    self._set_idle(node, node.idle - 1)
            share = job.memory_mb or state.device.memory_mb
            state.holders[job.id] = share
            state.whole = not job.memory_mb
            state.free_mb -= share
        self._held[job.id] = (job, devices)
        self._note_change(devices)
        self._charge_hosts(job, devices, 1)

    def give_back(self, job: Job) -> None:
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
        self._note_change(devices)
        self._charge_hosts(job, devices, -1)

    def _charge_hosts(self, job: Job, devices: tuple[Device, ...], times: int) -> None:
        """Processors and memory beside the devices, on each node that the job is on."""
        if job.cpus or job.ram_mb:
            for name in {device.node for device in devices} & self.nodes.keys():
                self.nodes[name].free_cpus -= times * job.cpus
                self.nodes[name].free_ram_mb -= times * job.ram_mb

    # -- questions ----------------------------------------------------------------------------

    def able(self, job: Job) -> Able:
        """What could ever serve the job, on an empty and healthy cluster."""
        ask = job.request
        found = self._able.get(ask)
        if found is None:
            nodes = pure = most = 0
            for node in self._order:
                accepted = sum(job.accepts(state.device) for state in node.devices)
                room = (not node.node.cpus or job.cpus <= node.node.cpus) and (
                    not node.node.ram_mb or job.ram_mb <= node.node.ram_mb
                )
                if accepted and room:
                    most = most + accepted if job.may_span_nodes else max(most, accepted)
                    if job.may_span_nodes or accepted >= job.least:
                        nodes |= node.bit
                    if accepted == len(node.devices):
                        pure |= node.bit
            if len(self._able) > 10_000:  # asks come and go in a pool that runs for months
                self._able.clear()
            found = self._able[ask] = Able(nodes, pure, most)
        return found

    def could_hold(self, job: Job) -> bool:
        """Whether an empty, healthy cluster could ever serve the job with all it asks for. An elastic
        job may do with less, but not under every policy."""
        return self.able(job).most >= job.gpus

    @property
    def is_sound(self) -> bool:
        """Whether every device is declared and healthy, and every node up."""
        if self._sound is None:
            healthy = all(state.healthy for state in self.devices.values())
            self._sound = healthy and all(node.up for node in self._order)
        return self._sound

    def with_idle(self, count: int) -> int:
        """The set of nodes that are up and have at least so many idle devices."""
        return self._at_least[count] if count < len(self._at_least) else 0

    def by_idle(self, nodes: int, least: int = 0) -> list[tuple[int, int]]:
        """The nodes of a set that are up, apart by how many devices are idle: (idle, nodes), from
        `least` upward."""
        at_least, found = self._at_least, []
        left = nodes & self.with_idle(least)
        while left:
            more = left & at_least[least + 1]
            if more != left:
                found.append((least, left ^ more))
            left, least = more, least + 1
        return found

    def changed_since(self, moment: int) -> Iterator[NodeState]:
        """The nodes whose devices changed hands or health after that moment, the latest first."""
        for node in reversed(self._latest.values()):
            if node.changed <= moment:
                return
            yield node

    def those(self, nodes: int) -> Iterator[NodeState]:
        """The nodes of a set, in declared order."""
        while nodes:
            bit = nodes & -nodes
            yield self._order[bit.bit_length() - 1]
            nodes ^= bit

    def mask(self, names: Iterable[str]) -> int:
        """The set of nodes with these names."""
        found = 0
        for name in names:
            if name in self.nodes:
                found |= self.nodes[name].bit
        return found


def _carry_over(old: DeviceState, new: DeviceState) -> None:
    new.holders, new.whole, new.healthy, new.detail = old.holders, old.whole, old.healthy, old.detail
    new.utilization = old.utilization
    new.free_mb -= sum(old.holders.values())
    if old.detail == ABSENT:
        new.healthy, new.detail = True, ""
