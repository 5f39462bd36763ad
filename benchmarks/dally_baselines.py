"""The schedulers with which Dally is compared, as its simulator has them, and Tiresias as its paper has it.

They serve this study only: the random placement of the one and the mistake of the other help no pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from gpu_flows.schedulers.cluster.node_state import DeviceState, NodeSet
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Node, Progress, Running, Tier
from gpu_flows.schedulers.placement.base import ALL_NODES, SharingOptions
from gpu_flows.schedulers.policies.tiresias import Tiresias, TiresiasOptions
from gpu_flows.schedulers.policy import Options, Policy, State
from gpu_flows.schedulers.policy_support.leases import Leases
from gpu_flows.schedulers.policy_support.starting import run_by_rank_on, start_in_order_on
from gpu_flows.schedulers.policy_support.tiers import (
    EXCLUSIVE,
    NarrowestTiers,
    are_free,
    find_in_tier,
    find_up_to,
)
from gpu_flows.schedulers.running_order import RunningRank
from gpu_flows.schedulers.workload import Arrival

LEASE_S = 3600.0
SPREAD_AT_ONCE = ("resnet50", "resnet18", "bertlarge")  # the models that Dally's Tiresias may spread
SKEWED = ("alexnet", "vgg11", "bertlarge")  # whose largest tensor dominates: Tiresias consolidates these


class DallysTiresias(Policy[Options]):
    """The least GPU-seconds first, without queues; one node, or several if the model may be spread.

    As in Dally's simulator, where a check compares a number that is never lowered: any job may be spread as
    soon as as many devices are idle as a node has.
    """

    name = "dallys_tiresias"
    preempts = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._leases = Leases(LEASE_S)
        self._now = 0.0

    def rank(self, job: Job, progress: Progress) -> float:
        return progress.gpu_s

    def running_rank(self, running: Running) -> RunningRank | None:
        self._leases.begin(running, self._now)
        return RunningRank(running.gpu_seconds(self._now)) if self._leases.is_over(running) else None

    def group(self, job: Job) -> object:
        return job.request, job.kind in SPREAD_AT_ONCE

    def plan(self, state: State) -> None:
        self._now = state.now
        for running in self._leases.end_due(state):
            if len(running.by_node) > 1:
                state.draft.preempt(running.job.id)  # it moves to one node, or keeps what it has
            else:
                state.draft.rerank(running.job.id)
        node_size = max(len(node.devices) for node in state.cluster)

        def widest(job: Job) -> Tier:
            spread = job.kind in SPREAD_AT_ONCE or job.gpus > node_size or state.cluster.idle >= node_size
            return Tier.CLUSTER if spread and job.may_span_nodes else Tier.NODE

        def find(job: Job) -> tuple[Device, ...]:
            kept = state.draft.taken_from(job.id)
            if are_free(job, kept, state.cluster):
                return find_in_tier(job, Tier.NODE, state.cluster) or kept
            return find_up_to(job, widest(job), state.cluster)

        def make_room(job: Job) -> bool:
            devices = self._leases.make_room(state, job, widest(job))
            if devices:
                state.draft.start(job, devices)
            return bool(devices)

        run_by_rank_on(state, find, make_room, EXCLUSIVE)
        state.draft.wake_at(self._leases.next_end(state))


class SkewAwareOptions(TiresiasOptions):
    """Jobs of skewed models stay together; others take as few nodes as there are."""

    def place(
        self, job: Job, cluster: Cluster, gpus: int | None = None, among: NodeSet = ALL_NODES
    ) -> tuple[Device, ...]:
        if not job.may_span_nodes:
            return find_in_tier(job, Tier.NODE, cluster, among)
        widest = _NARROWEST.of(job, cluster) if job.kind in SKEWED else Tier.CLUSTER
        for tier in Tier:
            if tier <= widest and (found := find_in_tier(job, tier, cluster, among)):
                return found
        return ()


_NARROWEST = NarrowestTiers()


class SkewAwareTiresias(Tiresias):
    """Tiresias with the placement of its paper: only models with a dominating tensor are consolidated."""

    name = "skew_aware_tiresias"
    Options = SkewAwareOptions

    def group(self, job: Job) -> object:
        return job.request, job.kind in SKEWED


class Gandiva(Policy[Options]):
    """The oldest job that fits starts on random devices, and moves to one node when that has room. As in
    Dally's simulator, which does not pack jobs."""

    name = "gandiva"
    preempts = True
    moves_running = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._random = Random(0)

    def plan(self, state: State) -> None:
        for running in list(state.running.values()):
            if len(running.by_node) > 1:
                self._improve(running, state)
        start_in_order_on(state, lambda job: self._place(job, state.cluster), EXCLUSIVE)

    def _improve(self, running: Running, state: State) -> None:
        checkpoint = state.draft.checkpoint()
        state.draft.preempt(running.job.id)
        devices = find_in_tier(running.job, Tier.NODE, state.cluster)
        if devices:
            state.draft.start(running.job, devices)
        else:
            state.draft.rollback(checkpoint)

    def _place(self, job: Job, cluster: Cluster) -> tuple[Device, ...]:
        idle = [each.device for each in _devices(cluster) if not each.holders]
        return tuple(self._random.sample(idle, job.gpus)) if len(idle) >= job.gpus else ()


class PackingGandiva(Gandiva):
    """Gandiva with packing: when no device is idle, two jobs for one device share one, as soon as one is idle
    again one of them moves there. Jobs that may be packed ask for memory: see `let_pack`."""

    name = "packing_gandiva"

    def plan(self, state: State) -> None:
        super().plan(state)
        cluster = state.cluster
        packed = [each for each in _devices(cluster) if len(each.holders) > 1] if cluster.idle else []
        for device in packed[: cluster.idle]:
            mover = list(device.holders)[-1]
            job = state.running[mover].job
            state.draft.preempt(mover)
            state.draft.start(job, self._place(job, cluster))
        if not cluster.idle:
            start_in_order_on(state, lambda job: self._pack(job, cluster), SHARED)

    def _pack(self, job: Job, cluster: Cluster) -> tuple[Device, ...]:
        if job.gpus != 1 or not job.memory_mb:
            return ()
        lone = [each.device for each in _devices(cluster) if len(each.holders) == 1 and each.fits(job)]
        return (self._random.choice(lone),) if lone else ()


SHARED = SharingOptions(sharing="shared", utilization_threshold=90)
PACKED = 0.47  # how much longer a job takes in a pair: median of 636 pairs that Gavel measured on V100


def let_pack(arrivals: list[Arrival], nodes: list[Node]) -> list[Arrival]:
    """Let the jobs for one device ask for half of its memory, so that every two of them fit together. How
    much they really need is not known of any of these workloads."""
    half = min(device.memory_mb for node in nodes for device in node.devices) // 2
    return [
        replace(each, job=replace(each.job, memory_mb=half)) if each.job.gpus == 1 else each
        for each in arrivals
    ]


def _devices(cluster: Cluster) -> Iterator[DeviceState]:
    return (each for node in cluster for each in node.devices)
