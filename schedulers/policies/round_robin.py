"""Round Robin over servers, as Schedulearn does it: with a remembered last server."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gpu_flows.schedulers.cluster import Cluster, NodeState
from gpu_flows.schedulers.model import Job, Plan
from gpu_flows.schedulers.placement import SharingOptions, first_fit
from gpu_flows.schedulers.policy import Policy, State, plan_of


class RoundRobinOptions(SharingOptions):
    wait_for_turn: bool = Field(
        default=False,
        title="Wait for the server whose turn it is",
        description="Keep the oldest job waiting for the next server, even while another has room.",
    )


class RoundRobin(Policy):
    """The oldest job goes to the server after the one that got the last job.

    A server that could never hold the job is passed over; one that is only full now passes its
    turn on, unless `wait_for_turn` is set (Schedulearn, section 4.4.2, says nothing of full
    servers, and its program dropped the job). The head of the line blocks those behind it.
    """

    name = "round_robin"
    Options = RoundRobinOptions
    options: RoundRobinOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last = ""

    def plan(self, state: State) -> Plan:
        draft = state.draft()
        for job in state.waiting:
            devices = first_fit(job, state.cluster, self.options, self._in_turn(job, state.cluster))
            if not devices:
                break
            draft.start(job, devices)
            self.last = devices[-1].node
        return plan_of(draft)

    def _in_turn(self, job: Job, cluster: Cluster) -> list[NodeState]:
        """The nodes that may get this job now, beginning after the last one served."""
        nodes = list(cluster)
        names = [node.name for node in nodes]
        after = names.index(self.last) + 1 if self.last in names else 0
        able = [
            node
            for node in nodes[after:] + nodes[:after]
            if job.may_span_nodes or sum(job.accepts(s.device) for s in node.devices) >= job.gpus
        ]
        return able[:1] if self.options.wait_for_turn and not job.may_span_nodes else able
