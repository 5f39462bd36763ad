"""The two ways in which most policies serve the line: start what fits, or make room for it.

Both walk the heads of the line's groups in the policy's order. Where the first of a group does
not fit nobody behind it does, so a walk costs as much as there are kinds of asks, however many
jobs wait.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heapreplace
from typing import Any

from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement import PlacementOptions
from gpu_flows.schedulers.policy import State


def expected(job: Job) -> float:
    """How long the job is expected to run; endless if nobody said."""
    return math.inf if job.expected_s is None else job.expected_s


def serve(state: State, options: PlacementOptions, strict: bool = False) -> None:
    """Start waiting jobs in order where they fit. Strict: the first that does not fit ends the walk."""
    cluster, draft = state.cluster, state.draft
    exclusive = options.sharing == "exclusive"
    if exclusive and not cluster.idle:
        return
    heads = state.line.heads(None if strict or not exclusive else cluster.idle)
    while heads:
        _, _, job, group = heads[0]
        devices = options.place(job, cluster)
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
    cluster, draft, line = state.cluster, state.draft, state.line
    heads = line.heads()
    while heads:
        rank, _, job, group = heads[0]
        if cluster.idle < job.gpus and not _somebody_behind(state, rank):
            heads = [head for head in heads if head[2].gpus <= cluster.idle]  # nobody yields any more
            heapify(heads)
            if not heads:
                return
            rank, _, job, group = heads[0]
        devices = _former_place(state, job) or options.place(job, cluster)
        if devices:
            draft.start(job, devices)
        elif _made_room(state, options, rank, job):
            # Those who yielded may fit elsewhere, and so may others of their kind.
            heads = [head for head in line.heads() if head[0] > rank]
            heapify(heads)
            continue
        else:
            heappop(heads)
            continue
        following = group.head()
        if following:
            heapreplace(heads, (*following, group))
        else:
            heappop(heads)


def _former_place(state: State, job: Job) -> tuple[Device, ...]:
    """Where the job ran until this plan stopped it, if nobody took that meanwhile: it need not move."""
    devices = state.draft.former(job.id)
    return devices if devices and not state.cluster.objection(job, devices) else ()


def _somebody_behind(state: State, rank: Any) -> bool:
    last = next(state.ladder.last_first(state.now), None)
    return last is not None and last[0] > rank


def _made_room(state: State, options: PlacementOptions, rank: Any, job: Job) -> bool:
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
    able = cluster.able(job)
    everywhere = cluster.idle
    freed: dict[str, float] = {}  # what a node would have
    met: dict[str, list[tuple[int, Running]]] = {}
    for standing, running in state.ladder.last_first(state.now):
        if standing <= rank:
            break
        counts = _useful(job, running, state)
        for name, count in counts.items() if by_node else ():
            if name in met:
                met[name].append((count, running))
                freed[name] += count
            else:
                node = cluster.nodes[name]
                met[name] = [(count, running)]
                freed[name] = (node.idle + count) if able.nodes & node.bit else -math.inf
            if freed[name] >= wanted:
                return _leavers(met[name], freed[name] - wanted)
        if job.may_span_nodes and counts:
            met.setdefault("", []).append((sum(counts.values()), running))
            everywhere += sum(counts.values())
            if everywhere >= job.gpus:
                return _leavers(met[""], everywhere - job.gpus)
    return []


def _useful(job: Job, running: Running, state: State) -> dict[str, int]:
    """How many devices on which nodes the job would gain, were this one stopped."""
    cluster = state.cluster
    nodes, devices = cluster.nodes, cluster.devices
    if cluster.is_sound and not (job.nodes or job.models or job.memory_mb):
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
