"""Round robin over nodes, as Schedulearn does it: it remembers the last node."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.starting import start_in_order_on


class RoundRobinOptions(PlacementOptions):
    wait_for_turn: bool = Field(default=False, title="Wait for the node whose turn it is")
    """Keep the oldest job waiting for the next node, even while another has room."""


class RoundRobin(Policy[RoundRobinOptions]):
    """The oldest job goes to the node after the one that got the last job.

    A node that could never hold the job is passed over; one that is only full now passes its
    turn on, unless `wait_for_turn` is set (Schedulearn, section 4.4.2, does not mention full
    nodes, and its program dropped the job). The head of the queue blocks the jobs behind it.
    """

    name = "round_robin"
    optimizes = "an even spread over the nodes"
    promises = ("no starvation",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last = ""  # the node that got the last job

    def plan(self, state: State) -> None:
        start_in_order_on(state, lambda job: self._in_turn(job, state.cluster), self.options, strict=True)

    def _in_turn(self, job: Job, cluster: Cluster) -> tuple[Device, ...]:
        """Return devices on the first node that may have the job, beginning after the last one."""
        last = cluster.nodes.get(self.last)
        before = last.bit * 2 - 1 if last else 0  # the nodes up to the last one
        able = cluster.eligible(job).nodes
        turns = [able & ~before, able & before]
        if self.options.wait_for_turn and not job.may_span_nodes:
            candidates = (node for turn in turns for node in cluster.nodes_in(turn))
            first = next((node for node in candidates if _is_large_enough(node, job)), None)
            turns = [first.bit] if first else []
        found: tuple[Device, ...] = ()
        for turn in filter(None, turns):
            found = found or self.options.place(job, cluster, among=turn)
        if not found and job.may_span_nodes:
            found = self.options.place(job, cluster)
        if found:
            self.last = found[-1].node
        return found


def _is_large_enough(node: NodeState, job: Job) -> bool:
    return sum(job.accepts(state.device) for state in node.devices) >= job.gpus
