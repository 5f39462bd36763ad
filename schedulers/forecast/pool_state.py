"""The state of a pool as data: everything that the simulator needs to continue from there.

A worker writes it, and other processes read it, so it holds names instead of objects with behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from gpu_flows.schedulers.mirror import Changes, Held
from gpu_flows.schedulers.model import NO_PROGRESS, Job, Node, Progress
from gpu_flows.schedulers.network.base import NetworkModel
from gpu_flows.schedulers.network.tables import load_network
from gpu_flows.schedulers.policy import Policy, PolicyError, is_built_in, make_policy
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.protection import Protection
from gpu_flows.schedulers.simulation.conditions import Conditions


@dataclass(frozen=True, slots=True)
class Costs:
    """What it takes to launch a job, and to stop it and start it again."""

    launch_s: float = 0.0  # from the decision until the job has started
    launch_upper_s: float = 0.0  # one launch in ten takes longer
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    migration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolState:
    pool: str
    now: float
    policy: str
    options: Mapping[str, Any]
    nodes: tuple[Node, ...]
    waiting: tuple[tuple[Job, Progress], ...] = ()
    running: tuple[Held, ...] = ()
    durations: Mapping[str, Estimate] = field(default_factory=dict)  # time on devices in all, by job id
    typical: Estimate | None = None  # of a job of which nothing is known; None: no job has ended yet
    protection: Protection | None = None
    node_health: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    device_health: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    utilization: Mapping[str, float] = field(default_factory=dict)
    network: str = ""  # the table that tells how it slows jobs down; empty: it does not
    costs: Costs = Costs()
    recent: tuple[tuple[Job, Estimate], ...] = ()  # the last jobs that came, with their durations
    runs_plugins: bool = False  # only in a process that a policy of another package may end or hold up

    def changes(self) -> Changes:
        """Return what brings an empty engine to this state."""
        return Changes(
            self.now,
            self.protection,
            None,
            list(self.nodes),
            dict(self.node_health),
            dict(self.device_health),
            dict(self.utilization),
            list(self.waiting),
            list(self.running),
        )

    def jobs(self) -> dict[str, Job]:
        """Return the waiting and the running jobs by id."""
        return {job.id: job for job, _ in self.waiting} | {held.job.id: held.job for held in self.running}

    def work(self) -> dict[str, float]:
        """Return how much of its duration each job has done by now."""
        done = {job.id: progress.work_s for job, progress in self.waiting}
        return done | {
            held.job.id: held.before.work_s + max(0.0, self.now - held.since) for held in self.running
        }

    def duration(self, job_id: str) -> Estimate | None:
        """Return the time on devices that a job will take in all; None if nothing is known."""
        return self.durations.get(job_id) or self.typical

    def make_policy(self) -> Policy:
        """Return a new policy of the pool's kind. What the pool's own policy keeps in mind is not known here.
        Raises PolicyError, also for a policy of another package where none may run."""
        if not self.runs_plugins and not is_built_in(self.policy):
            raise PolicyError(
                f"Policy {self.policy!r} is part of another package. Only the worker's own forecasts run it."
            )
        return make_policy(self.policy, self.options)

    def network_model(self) -> NetworkModel | None:
        return load_network(self.network) if self.network else None

    def conditions(self) -> Conditions:
        """Return what the simulator has to take into account."""
        costs = self.costs
        return Conditions(
            network=self.network_model(),
            checkpoint_s=costs.checkpoint_s,
            restart_s=costs.restart_s,
            migration_s=costs.migration_s,
        )

    # -- the same pool, but for one thing -------------------------------------------------------

    def under(self, policy: str, options: Mapping[str, Any] | None = None) -> PoolState:
        """Return the same state under another policy."""
        return replace(self, policy=policy, options=options or {})

    def with_job(self, job: Job, duration: Estimate | None = None) -> PoolState:
        """Return the same state with one more waiting job."""
        durations = {**self.durations, job.id: duration} if duration else self.durations
        return replace(self, waiting=(*self.waiting, (job, NO_PROGRESS)), durations=durations)

    def with_request(self, changed: Job, duration: Estimate | None = None) -> PoolState:
        """Return the same state, in which a waiting job asks for something else."""
        waiting = tuple(
            (changed if job.id == changed.id else job, progress) for job, progress in self.waiting
        )
        durations = {**self.durations, changed.id: duration} if duration else self.durations
        return replace(self, waiting=waiting, durations=durations)

    def to_json(self) -> bytes:
        return _JSON.dump_json(self)

    @classmethod
    def from_json(cls, text: bytes) -> PoolState:
        """Raises ValueError for a text of another version."""
        return _JSON.validate_json(text)


_JSON = TypeAdapter(PoolState)
