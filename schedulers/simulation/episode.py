"""One episode of learning, or of its evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_flows.schedulers.model import Node
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.workload import Arrival


@dataclass(frozen=True)
class Episode:
    """A workload on a cluster, from its first arrival to its last end."""

    arrivals: Sequence[Arrival]
    nodes: Sequence[Node]
    restart_s: float = 0.0  # what a preemption costs the job
    name: str = ""

    @property
    def conditions(self) -> Conditions:
        return Conditions(restart_s=self.restart_s)

    def simulate(self, policy: Policy) -> Simulation:
        """Simulate it under a policy. Raises an error if the policy fails."""
        found = simulate(self.arrivals, self.nodes, policy, self.conditions)
        if found.policy_error:
            raise RuntimeError(f"Policy {policy.name!r} failed: {found.policy_error}")
        return found
