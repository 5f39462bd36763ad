"""The two ways in which most policies serve the queue: start what fits, or make room for it.

Both walk the heads of the queue's groups in the policy's order. Where the first of a group does
not fit nobody behind it does, so a walk costs as much as there are kinds of asks, however many
jobs wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heapreplace
from typing import Any

from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.base import SharingOptions
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import State


def expected(job: Job) -> float:
    """How long the job is expected to run; endless if nobody said."""
    return math.inf if job.expected_s is None else job.expected_s


Place = Callable[[Job], tuple[Device, ...]]


def serve(state: State, options: PlacementOptions, strict: bool = False) -> None:
    """Start waiting jobs in order where they fit. Strict: the first that does not fit ends the walk."""
    serve_at(state, lambda job: options.place(job, state.cluster), options, strict)


def serve_at(state: State, place: Place, sharing: SharingOptions, strict: bool = False) -> None:
    """The same, for a policy that finds the devices in its own way."""
    cluster, draft = state.cluster, state.draft
    exclusive = sharing.sharing == "exclusive"
    if exclusive and not cluster.idle:
        return
    heads = state.queue.heads(None if strict or not exclusive else cluster.idle)
    while heads:
        _, _, job, group = heads[0]
        devices = place(job)
        if devices:
            draft.start(job, devices)
            if exclusive and not cluster.idle:
                return
            following = group.head()
            if following:
                heapreplace(heads, (*following, group))
                continue
        elif strict:
            return
        heappop(heads)


def serve_by_rank(state: State, options: PlacementOptions) -> None:
    """Who stands first runs: start waiting jobs in order where they fit, or would if running jobs
    that stand behind them made room.

    The outcome is that of walking all jobs in order and keeping each that fits beside those before
    it; but since time alone never changes that outcome, only what is new has to be looked at.
    Shared devices are never taken away: who would get how much by it is anybody's guess.
    """
    if not state.can_preempt or options.sharing == "shared":
        return serve(state, options)
    cluster, draft, queue = state.cluster, state.draft, state.queue
    served: Any = None  # the last for whom room was made; those before it had their chance
    heads = queue.heads()
    while heads:
        rank, _, job, group = heads[0]
        if cluster.idle < job.gpus and not somebody_behind(state, rank):
            heads = [head for head in heads if head[2].gpus <= cluster.idle]  # nobody yields any more
            heapify(heads)
            if not heads:
                return
            rank, _, job, group = heads[0]
        devices = _former_place(state, options, job) or options.place(job, cluster)
        if devices:
            draft.start(job, devices)
        elif (served is None or rank > served) and make_room(state, options, rank, job):
            served = rank
            heads = queue.heads()  # those who yielded, or others, may fit into what is left over
            continue
        else:
            heappop(heads)
            continue
        following = group.head()
        if following:
            heapreplace(heads, (*following, group))
        else:
            heappop(heads)


def _former_place(state: State, options: PlacementOptions, job: Job) -> tuple[Device, ...]:
    """Where the job ran until this plan stopped it, if nobody took that meanwhile: it need not move."""
    devices = state.draft.previous(job.id)
    return devices if devices and options.are_available(job, devices, state.cluster) else ()


def somebody_behind(state: State, rank: Any) -> bool:
    last = next(state.yielding(), None)
    return last is not None and last[0] > rank


def make_room(state: State, options: PlacementOptions, rank: Any, job: Job) -> bool:
    """Start the job in the place of running ones that stand behind this rank, if that is possible."""
    draft, mark = state.draft, state.draft.mark
    for victim in _victims(state, rank, job, options.placement == "any"):
        draft.preempt(victim.job.id)
    if draft.mark > mark:
        devices = options.place(job, state.cluster)
        if devices:
            draft.start(job, devices)
            return True
        draft.undo(mark)
    return False


def _victims(state: State, rank: Any, job: Job, anywhere: bool) -> list[Running]:
    """Who has to yield for the job, the last in order first; nobody if that would not be enough.

    Going up from the last in order, until a node (or all nodes together, for a job that may span
    them) would have the devices; of those met so far, they who fit beside the job may stay.
    """
    cluster = state.cluster
    wanted, by_node = job.gpus, not (anywhere and job.may_span_nodes)
    able = cluster.eligible(job)
    needs_host = bool(job.cpus or job.ram_mb)
    everywhere = sum(_idle(node, job, state) for node in cluster) if _is_picky(job) else cluster.idle
    has: dict[str, float] = {}  # what a node would have
    met: dict[str, list[tuple[int, Running]]] = {}
    for running_rank, running in state.yielding():
        if running_rank <= rank:
            break
        counts = _useful(job, running, state)
        for name, count in counts.items() if by_node else ():
            if name in met:
                met[name].append((count, running))
                has[name] += count
            else:
                node = cluster.nodes[name]
                met[name] = [(count, running)]
                has[name] = (_idle(node, job, state) + count) if able.nodes & node.bit else -math.inf
            if has[name] >= wanted:
                if not needs_host:
                    return _leavers(met[name], has[name] - wanted)
                if _host_has_room(cluster.nodes[name], job, met[name]):
                    return [victim for _, victim in met[name]]
        if job.may_span_nodes and counts:
            met.setdefault("", []).append((sum(counts.values()), running))
            everywhere += sum(counts.values())
            if everywhere >= wanted and not needs_host:
                return _leavers(met[""], everywhere - wanted)
    return [victim for _, victim in met.get("", [])] if everywhere >= wanted else []


def _is_picky(job: Job) -> bool:
    """Whether there may be devices that it does not accept."""
    return bool(job.nodes or job.models or job.memory_mb)


def _idle(node: NodeState, job: Job, state: State) -> int:
    """How many idle devices of the node the job accepts."""
    if not node.idle or not _is_picky(job) or state.cluster.eligible(job).accepts_all & node.bit:
        return node.idle
    return sum(1 for each in node.devices if each.healthy and not each.holders and job.accepts(each.device))


def _host_has_room(node: NodeState, job: Job, met: list[tuple[int, Running]]) -> bool:
    """Whether processors and memory beside the devices would suffice, were all of them gone."""
    cpus = node.free_cpus + sum(running.job.cpus for _, running in met)
    ram_mb = node.free_ram_mb + sum(running.job.ram_mb for _, running in met)
    return (not node.node.cpus or job.cpus <= cpus + 1e-9) and (not node.node.ram_mb or job.ram_mb <= ram_mb)


def _useful(job: Job, running: Running, state: State) -> dict[str, int]:
    """How many devices on which nodes the job would gain, were this one stopped."""
    cluster = state.cluster
    nodes, devices = cluster.nodes, cluster.devices
    if cluster.is_healthy and not _is_picky(job):
        return running.by_node
    counts: dict[str, int] = {}
    for device in running.devices:
        node = nodes.get(device.node)
        if node is not None and node.up and devices[device.id].healthy and job.accepts(device):
            counts[device.node] = counts.get(device.node, 0) + 1
    return counts


def _leavers(met: list[tuple[int, Running]], spare: float) -> list[Running]:
    """Of those met, last in order first, all but the ones that fit into what is spare."""
    leaving = []
    for count, running in reversed(met):
        if count <= spare:
            spare -= count
        else:
            leaving.append(running)
    return leaving[::-1]
