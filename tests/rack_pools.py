"""Jobs on a pool with racks, for tests of policies that place by network."""

from __future__ import annotations

from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Action, Job, Start

RACKS = "4x2@2"  # two racks with two nodes of two devices each


def hold(engine: Engine, *nodes: str) -> None:
    """Let a job of one device run on each of these nodes, for good."""
    for number, node in enumerate(nodes):
        engine.submit(Job(f"held-{number}-{node}", nodes=(node,), preemptible=False, expected_s=1e6))
    engine.tick(0.0)
    assert len(engine.running) >= len(nodes)


def wide(
    job_id: str = "wide",
    kind: str = "",
    gpus: int = 2,
    submitted: float = 0.0,
    expected_s: float | None = 1000.0,
) -> Job:
    """A job for several devices that may span nodes."""
    return Job(job_id, submitted=submitted, gpus=gpus, may_span_nodes=True, kind=kind, expected_s=expected_s)


def started(actions: list[Action]) -> list[str]:
    return [action.job.id for action in actions if isinstance(action, Start)]
