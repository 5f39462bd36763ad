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
from gpu_flows.schedulers.network.base import NetworkModel
from gpu_flows.schedulers.prediction.interference import Interference
from gpu_flows.schedulers.simulation.profiles import Profile

if TYPE_CHECKING:
    from gpu_flows.schedulers.engine import Engine


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
    network: NetworkModel | None = None  # None: a job is as fast on several nodes as on one
    interference: float = 0.0  # slowdown for each other job on a device; with 1, jobs take turns
    pairs: Interference | None = None  # slowdowns by kinds of jobs and GPU model, instead of that number
    expected_pairs: Interference | None = None  # what policies are told of them; None: the truth
    oom_after: float = 0.0  # a job that exceeds its devices' memory dies after this part of its work
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
            and self.network is None
            and self.pairs is None
            and not (self.interference or self.checkpoint_s or self.restart_s or self.migration_s)
        )

    def expected_slowdown(self, job: Job, others: Sequence[Job], model: str) -> float:
        """Return the slowdown of a job beside those others, as policies are told."""
        known = self.expected_pairs or self.pairs
        return known.of_jobs(job, others, model) if known else 1 + self.interference * len(others)

    def rate(
        self, job: Job, devices: tuple[Device, ...], engine: Engine, network_slowdown: float = 1.0
    ) -> float:
        """Return the seconds of work that the job does in a second on these devices, with the jobs that
        share them now."""
        if not devices:
            return 1.0
        rate = 1.0
        if self.profile.throughput or len(devices) != job.gpus:
            models = {device.model for device in devices}
            rate = min(self.profile.speed(job, model, len(devices)) for model in models)
        rate /= network_slowdown
        if self.pairs is None:
            if not self.interference:
                return rate
            holders = max(len(engine.cluster.devices[device.id].holders) for device in devices)
            return rate / (1 + self.interference * (holders - 1))
        return rate / max(self._slowdown(job, device, engine) for device in devices)

    def _slowdown(self, job: Job, device: Device, engine: Engine) -> float:
        assert self.pairs is not None
        holders = engine.cluster.devices[device.id].holders
        others = [engine.running[job_id].job for job_id in holders if job_id != job.id]
        return self.pairs.of_jobs(job, others, device.model)

    def pause_s(self, before: tuple[Device, ...], after: tuple[Device, ...], saved: bool) -> float:
        """Return how long a job takes to work again after it was stopped; it does not count as moved if its
        devices `before` are not known. This includes the time to save it, unless it broke down and was not
        saved."""
        moved = bool(before) and {device.node for device in after} != {device.node for device in before}
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
