"""The devices and who holds them, kept up to date move by move.

Memory is the currency: a job that asks for so many MiB is promised them, a job that asks for
whole devices is promised all there is. What is promised never exceeds what a device has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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


class NodeState:
    """One node's devices in index order, and how many of them nobody holds."""

    __slots__ = ("detail", "devices", "idle", "node", "up")

    def __init__(self, node: Node, devices: list[DeviceState]) -> None:
        self.node = node
        self.devices = devices
        self.up = True
        self.detail = ""
        self.idle = sum(1 for state in devices if state.healthy and not state.holders)

    @property
    def name(self) -> str:
        return self.node.name


class Cluster:
    """Every node and device. Only the engine and its drafts move anything in here."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: dict[str, NodeState] = {}
        self.devices: dict[str, DeviceState] = {}
        self._held: dict[str, tuple[Device, ...]] = {}
        self.replace(nodes)

    def __iter__(self) -> Iterator[NodeState]:
        """The nodes that are up, in declared order."""
        return (node for node in self.nodes.values() if node.up)

    # -- what there is ------------------------------------------------------------------------

    def replace(self, nodes: Iterable[Node]) -> None:
        """Take a new declaration. A device that is still declared keeps its holders; one that is
        not is forgotten once nobody holds it."""
        before, old_nodes = self.devices, self.nodes
        self.nodes, self.devices = {}, {}
        for node in nodes:
            states = []
            for device in node.devices:
                state = DeviceState(device)
                if device.id in before:
                    _carry_over(before[device.id], state)
                states.append(state)
                self.devices[device.id] = state
            self.nodes[node.name] = NodeState(node, states)
            if node.name in old_nodes:
                self.nodes[node.name].up = old_nodes[node.name].up
                self.nodes[node.name].detail = old_nodes[node.name].detail
        for device_id, state in before.items():
            if device_id not in self.devices and state.holders:
                state.healthy, state.detail = False, ABSENT
                self.devices[device_id] = state

    def remember(self, device: Device) -> DeviceState:
        """The device's state, also of one that is not declared (any more) but that a job holds."""
        if device.id not in self.devices:
            state = self.devices[device.id] = DeviceState(device)
            state.healthy, state.detail = False, ABSENT
        return self.devices[device.id]

    def set_node(self, name: str, up: bool, detail: str = "") -> None:
        self.nodes[name].up, self.nodes[name].detail = up, detail

    def set_health(self, device_id: str, healthy: bool, detail: str = "") -> bool:
        """Whether anything changed."""
        state = self.devices.get(device_id)
        if state is None or state.healthy == healthy or state.detail == ABSENT:
            return False
        state.healthy, state.detail = healthy, detail
        self._count_idle(state.device.node)
        return True

    # -- who holds what -----------------------------------------------------------------------

    def objection(self, job: Job, devices: tuple[Device, ...]) -> str:
        """Why the job must not have exactly these devices; empty if it may."""
        if len(devices) != job.gpus:
            return f"job {job.id} asks for {job.gpus} devices, not {len(devices)}"
        if len({device.id for device in devices}) != len(devices):
            return f"job {job.id} was given a device twice"
        if not job.may_span_nodes and len({device.node for device in devices}) > 1:
            return f"job {job.id} does not allow devices on several nodes"
        for device in devices:
            state = self.devices.get(device.id)
            if state is None or state.device != device:
                return f"device {device.id} is not part of the cluster"
            node = self.nodes.get(device.node)
            if node is None or not node.up:
                return f"node {device.node} is down"
            if not job.accepts(device):
                return f"job {job.id} does not accept device {device.id}"
            if not state.fits(job):
                return f"device {device.id} has no room for job {job.id}"
        return ""

    def take(self, job: Job, devices: tuple[Device, ...]) -> None:
        if job.id in self._held:
            raise ValueError(f"job {job.id} holds devices already")
        for device in devices:
            state = self.devices[device.id]
            if not state.holders and state.healthy and device.node in self.nodes:
                self.nodes[device.node].idle -= 1
            share = job.memory_mb or state.device.memory_mb
            state.holders[job.id] = share
            state.whole = not job.memory_mb
            state.free_mb -= share
        self._held[job.id] = devices

    def give_back(self, job_id: str) -> None:
        for device in self._held.pop(job_id, ()):
            state = self.devices[device.id]
            state.free_mb += state.holders.pop(job_id)
            if state.holders:
                continue
            if device.node in self.nodes and state in self.nodes[device.node].devices:
                if state.healthy:
                    self.nodes[device.node].idle += 1
            else:
                del self.devices[device.id]

    def take_back_all_but(self, jobs: Mapping[str, object]) -> None:
        """End every try: only these jobs, which held their devices before it, go on doing so."""
        while len(self._held) > len(jobs):
            self.give_back(next(reversed(self._held)))

    # -- questions ----------------------------------------------------------------------------

    def could_hold(self, job: Job) -> bool:
        """Whether an empty, healthy cluster could ever serve the job."""
        fitting = [sum(job.accepts(s.device) for s in node.devices) for node in self.nodes.values()]
        return (sum(fitting) if job.may_span_nodes else max(fitting, default=0)) >= job.gpus

    def _count_idle(self, node_name: str) -> None:
        node = self.nodes.get(node_name)
        if node is not None:
            node.idle = sum(1 for state in node.devices if state.healthy and not state.holders)


def _carry_over(old: DeviceState, new: DeviceState) -> None:
    new.holders, new.whole, new.healthy, new.detail = old.holders, old.whole, old.healthy, old.detail
    new.utilization = old.utilization
    new.free_mb -= sum(old.holders.values())
    if old.detail == ABSENT:
        new.healthy, new.detail = True, ""


class Draft:
    """Moves tried on the cluster and taken back: how a policy plans several starts in a row."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.starts: list[tuple[Job, tuple[Device, ...]]] = []

    def start(self, job: Job, devices: tuple[Device, ...]) -> None:
        """Try the job on these devices; later questions see them as taken."""
        self.cluster.take(job, devices)
        self.starts.append((job, devices))

    def undo(self, keep: int = 0) -> None:
        """Take back every try after the first `keep`."""
        while len(self.starts) > keep:
            self.cluster.give_back(self.starts.pop()[0].id)
