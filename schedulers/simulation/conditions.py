"""The conditions of a simulation: speeds, distances, sharing, restarts and breakdowns.

By default a job runs for exactly the duration that its trace states.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from gpu_flows.schedulers.model import Device, Job, Node, Progress, Running
from gpu_flows.schedulers.simulation.profiles import Profile

if TYPE_CHECKING:
    from gpu_flows.schedulers.engine import Engine


@dataclass(frozen=True)
class Tiers:
    """The slowdown of a job that spans the nodes of one rack, and of one that spans racks."""

    nodes: float = 1.0
    racks: float = 1.0
    kinds: dict[str, tuple[float, float]] = field(default_factory=dict)  # kind -> (nodes, racks)

    def slowdown(self, job: Job, devices: tuple[Device, ...], engine: Engine) -> float:
        names = {device.node for device in devices}
        if len(names) < 2:
            return 1.0
        nodes, racks = self.kinds.get(job.kind, (self.nodes, self.racks))
        return racks if len({engine.cluster.nodes[name].node.rack for name in names}) > 1 else nodes


@dataclass(frozen=True)
class Breakdown:
    """A node, or one device of it, breaks down or is repaired."""

    node: str
    device: str = ""  # empty: the whole node
    repaired: bool = False

    def hits(self, device: Device) -> bool:
        return device.id == self.device if self.device else device.node == self.node


class Breakdowns:
    """Breakdowns and repairs of every node and device, at random times, without end."""

    def __init__(self, nodes: Sequence[Node], conditions: Conditions) -> None:
        self._random = random.Random(conditions.seed)
        self._repair_s = conditions.repair_s
        self._queue: list[tuple[float, int, float, Breakdown]] = []
        for node in nodes:
            if conditions.node_mtbf_s:
                self._schedule(0.0, conditions.node_mtbf_s, Breakdown(node.name))
            if conditions.device_mtbf_s:
                for device in node.devices:
                    self._schedule(0.0, conditions.device_mtbf_s, Breakdown(node.name, device.id))
        heapify(self._queue)

    def _schedule(self, now: float, mtbf_s: float, breakdown: Breakdown) -> None:
        mean = self._repair_s if breakdown.repaired else mtbf_s
        after = self._random.expovariate(1 / mean) if mean else 0.0
        heappush(self._queue, (now + after, len(self._queue), mtbf_s, breakdown))

    @property
    def next_at(self) -> float:
        return self._queue[0][0]

    def pop(self) -> Breakdown:
        now, _, mtbf_s, breakdown = heappop(self._queue)
        self._schedule(now, mtbf_s, Breakdown(breakdown.node, breakdown.device, not breakdown.repaired))
        return breakdown


@dataclass(frozen=True)
class Conditions:
    """All parameters of a simulation except workload, cluster and policy."""

    profile: Profile = field(default_factory=Profile)
    tiers: Tiers = field(default_factory=Tiers)
    interference: float = 0.0  # slowdown for each other job on a device; with 1, jobs take turns
    checkpoint_s: float = 0.0  # time to save a job that is preempted
    restart_s: float = 0.0  # time until a job that ran before works again
    migration_s: float = 0.0  # additional time if it restarts on other nodes
    checkpoint_every_s: float = 0.0  # a breakdown loses at most this much work; 0: none
    node_mtbf_s: float = 0.0  # mean time between failures; 0: never
    device_mtbf_s: float = 0.0
    repair_s: float = 3600.0
    seed: int = 0

    @property
    def keep_durations(self) -> bool:
        """Whether every job always runs at a rate of 1 and restarts take no time."""
        return (
            self.profile == Profile()
            and self.tiers == Tiers()
            and not (self.interference or self.checkpoint_s or self.restart_s or self.migration_s)
        )

    def rate(self, job: Job, devices: tuple[Device, ...], engine: Engine) -> float:
        """Return the seconds of work that the job does in a second on these devices, with the jobs that
        share them now."""
        if not devices:
            return 1.0
        slowest = min(self.profile.speed(job, model, len(devices)) for model in {d.model for d in devices})
        rate = slowest / self.tiers.slowdown(job, devices, engine)
        holders = max(len(engine.cluster.devices[device.id].holders) for device in devices)
        return rate / (1 + self.interference * (holders - 1))

    def pause_s(self, before: tuple[Device, ...], after: tuple[Device, ...], saved: bool) -> float:
        """Return how long a job takes to work again after it was stopped; 0 for its first attempt. This
        includes the time to save it, unless it broke down and was not saved."""
        if not before:
            return 0.0
        moved = {device.node for device in after} != {device.node for device in before}
        saving = self.checkpoint_s if saved else 0.0
        return saving + self.restart_s + (self.migration_s if moved else 0.0)

    def progress_after_breakdown(self, running: Running, now: float) -> Progress:
        """Return the progress of a job up to its last checkpoint."""
        full = running.progress(now)
        if not self.checkpoint_every_s:
            return full
        unsaved = full.work_s - running.before.work_s
        kept = running.before.work_s + unsaved - unsaved % self.checkpoint_every_s
        return Progress(full.attempts, full.ran_s, full.gpu_s, kept, now)

    def breakdowns(self, nodes: Sequence[Node]) -> Breakdowns | None:
        return Breakdowns(nodes, self) if self.node_mtbf_s or self.device_mtbf_s else None
