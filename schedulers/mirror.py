"""Keeps a second engine, in another process, at the state of the first, so that a policy can plan there.

The `Original` compares the state with what the other side knows and yields the `Changes`; `apply` makes them
in the other engine. Nothing depends on the two having made the same moves: what differs is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Device, Job, Node, Progress, Running
from gpu_flows.schedulers.network.shape import NetworkSlowdown, no_slowdown
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.protection import Protection


class Held(NamedTuple):
    """A running job, without what its runtime adds."""

    job: Job
    devices: tuple[Device, ...]
    since: float
    attempt: int
    before: Progress

    @classmethod
    def of(cls, running: Running) -> Held:
        return cls(running.job, running.devices, running.since, running.attempt, running.before)


@dataclass(slots=True)
class Changes:
    """What happened since the last changes. It is pickled."""

    now: float
    protection: Protection | None
    network: NetworkSlowdown | None = None  # None: the same as before
    nodes: list[Node] | None = None  # None: the same as before
    node_health: dict[str, tuple[bool, str]] = field(default_factory=dict)
    device_health: dict[str, tuple[bool, str]] = field(default_factory=dict)
    utilization: dict[str, float] = field(default_factory=dict)
    waiting: list[tuple[Job, Progress]] = field(default_factory=list)
    running: list[Held] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # jobs that neither wait nor run

    def __bool__(self) -> bool:
        """Whether anything but the time changed."""
        health = self.node_health or self.device_health or self.utilization
        cluster = self.network is not None or self.nodes is not None or health
        return bool(cluster or self.waiting or self.running or self.gone)


class Original:
    """Knows what the other side knows."""

    def __init__(self) -> None:
        self._network: NetworkSlowdown = no_slowdown
        self._nodes: list[Node] = []
        self._node_health: dict[str, tuple[bool, str]] = {}
        self._device_health: dict[str, tuple[bool, str]] = {}
        self._utilization: dict[str, float] = {}
        self._jobs: dict[str, tuple[Job, Progress] | Held | None] = {}  # None: to be sent in any case

    def changes(self, state: State) -> Changes:
        """Return what the other side does not know yet. It counts as known from now on."""
        changes = Changes(state.now, state.draft.protection)
        self._compare_cluster(state, changes)
        queue, before = state.queue, self._jobs
        now: dict[str, tuple[Job, Progress] | Held | None] = {}
        for job in queue.unordered():
            entry = before.get(job.id)
            progress = queue.progress(job.id)
            if type(entry) is not tuple or entry[0] is not job or entry[1] != progress:
                entry = (job, progress)
                changes.waiting.append(entry)
            now[job.id] = entry
        for running in state.running.values():
            held = Held.of(running)
            if before.get(running.job.id) != held:
                changes.running.append(held)
            now[running.job.id] = held
        changes.gone.extend(before.keys() - now.keys())
        self._jobs = now
        return changes

    def expect_again(self, job_ids: Iterable[str]) -> None:
        """Send these jobs with the next changes: the other side has moved them by its plan."""
        self._jobs.update(dict.fromkeys(job_ids))

    def _compare_cluster(self, state: State, changes: Changes) -> None:
        cluster = state.cluster
        if state.network is not self._network:
            self._network = changes.network = state.network
        nodes = [node.node for node in cluster.nodes.values()]
        if nodes != self._nodes:
            self._nodes = changes.nodes = nodes
            self._node_health, self._device_health, self._utilization = {}, {}, {}
        for name, node in cluster.nodes.items():
            health = (node.up, node.detail)
            if self._node_health.get(name, (True, "")) != health:
                changes.node_health[name] = self._node_health[name] = health
        for device_id, device in cluster.devices.items():
            health = (device.healthy, device.detail)
            if self._device_health.get(device_id, (True, "")) != health:
                changes.device_health[device_id] = self._device_health[device_id] = health
            if self._utilization.get(device_id, 0.0) != device.utilization:
                changes.utilization[device_id] = self._utilization[device_id] = device.utilization


def apply(changes: Changes, engine: Engine) -> None:
    """Bring the engine to the state of the original."""
    if changes.network is not None:
        engine.set_network(changes.network)
    if changes.nodes is not None:
        engine.set_nodes(())  # forgets the health of the old nodes
        engine.set_nodes(changes.nodes)
    for name, (up, detail) in changes.node_health.items():
        engine.set_node(name, up, detail)
    for device_id, (is_healthy, detail) in changes.device_health.items():
        engine.set_health(device_id, is_healthy, detail)
    engine.set_utilization(changes.utilization)
    if changes.protection is not None:
        engine.set_protection(changes.protection)
    moved = [
        *changes.gone,
        *(job.id for job, _ in changes.waiting),
        *(held.job.id for held in changes.running),
    ]
    for job_id in moved:
        engine.ended(job_id)
        engine.withdraw(job_id)
    for held in changes.running:  # first, because a policy may count jobs in the order in which it sees them
        engine.adopt(*held)
    for job, progress in changes.waiting:
        engine.submit(job, progress)
