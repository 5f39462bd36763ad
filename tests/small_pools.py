"""Engines and simulations of a few nodes, for tests of policies."""

from __future__ import annotations

from dataclasses import replace

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Node, Preempt, Start
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import Arrival


def run(policy: str, arrivals: list[Arrival], nodes: list[Node], **options: object) -> dict[str, float]:
    """When each job started first."""
    found = simulate(arrivals, nodes, make_policy(policy, options))
    assert not found.policy_error
    assert all(job.ended is not None for job in found.jobs)
    return {job.arrival.job.id: job.started or 0.0 for job in found.jobs}


def tick(engine: Engine, now: float) -> list[str]:
    """Who was started; those that had to yield begin with a minus."""
    names = []
    for action in engine.tick(now):
        if isinstance(action, Preempt):
            names.append(f"-{action.running.job.id}")
        elif isinstance(action, Start):
            names.append(action.job.id)
    assert not engine.policy_error
    return names


def pool(policy: str, nodes: str | list[Node], preempt: bool = False, **options: object) -> Engine:
    return Engine(
        declare(nodes) if isinstance(nodes, str) else nodes, make_policy(policy, options), can_preempt=preempt
    )


def submit(engine: Engine, *jobs: Job) -> None:
    for number, job in enumerate(jobs):
        engine.submit(replace(job, submitted=job.submitted + number / 1000))


def plain(arrivals: list[Arrival]) -> list[Arrival]:
    """All of one priority."""
    return [replace(each, job=replace(each.job, priority=0)) for each in arrivals]
