"""Round Robin over servers, as Schedulearn does it: with a remembered last server."""

from __future__ import annotations

from heapq import heappop, heapreplace
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.cluster import Cluster
from gpu_flows.schedulers.model import Device, Job, Plan
from gpu_flows.schedulers.placement import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State


class RoundRobinOptions(PlacementOptions):
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
    optimizes = "an even spread over the servers"
    promises = ("no starvation",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last = ""

    def plan(self, state: State) -> Plan:
        cluster, draft = state.cluster, state.draft
        if self.options.sharing == "exclusive" and not cluster.idle:
            return draft.plan()
        heads = state.line.heads()
        while heads:
            _, _, job, group = heads[0]
            devices = self._in_turn(job, cluster)
            if not devices:
                break
            draft.start(job, devices)
            self.last = devices[-1].node
            following = group.head()
            if following:
                heapreplace(heads, (*following, group))
            else:
                heappop(heads)
        return draft.plan()

    def _in_turn(self, job: Job, cluster: Cluster) -> tuple[Device, ...]:
        """Devices on the first node that may have the job, beginning after the last one served."""
        last = cluster.nodes.get(self.last)
        before = last.bit * 2 - 1 if last else 0  # the nodes up to the last one served
        able = cluster.able(job).nodes
        turns = [able & ~before, able & before]
        if self.options.wait_for_turn and not job.may_span_nodes:
            first = next((next(cluster.those(turn)) for turn in turns if turn), None)
            return self.options.place(job, cluster, among=first.bit) if first else ()
        for turn in turns:
            devices = self.options.place(job, cluster, among=turn) if turn else ()
            if devices:
                return devices
        return self.options.place(job, cluster) if job.may_span_nodes else ()
