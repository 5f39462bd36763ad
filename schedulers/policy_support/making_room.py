"""Preempting running jobs of a later rank so that a waiting job can start."""

from __future__ import annotations

import math

from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.model import Job, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.policy_support.shared_room import host_has_room, make_shared_room


def is_preemptible_after(state: State, job: Job) -> bool:
    """Return whether some running job of a later rank than this waiting one may be preempted."""
    last = next(state.preemptible(), None)
    return last is not None and last[0] > state.queue.rank_of(job.id)


def make_room(state: State, options: PlacementOptions, job: Job) -> bool:
    """Start the waiting job in the place of running ones of a later rank. Return whether that succeeded."""
    if options.sharing == "shared":
        return make_shared_room(state, options, job)
    draft, checkpoint = state.draft, state.draft.checkpoint()
    for running in _choose_preemptions(state, job, options.placement == "any"):
        draft.preempt(running.job.id)
    if draft.checkpoint() > checkpoint:
        devices = options.place(job, state.cluster)
        if devices:
            draft.start(job, devices)
            return True
        draft.rollback(checkpoint)
    return False


def _choose_preemptions(state: State, job: Job, anywhere: bool) -> list[Running]:
    """Return the running jobs to preempt for the job, the last in order first; none if that is not enough.

    The search goes up from the last in order until a node (or all nodes together, for a job that may
    span them) would have the devices. Of the jobs met so far, those that fit beside the job may stay.
    """
    cluster, rank = state.cluster, state.queue.rank_of(job.id)
    wanted, by_node = job.gpus, not (anywhere and job.may_span_nodes)
    able = cluster.eligible(job)
    needs_host = bool(job.cpus or job.ram_mb)
    everywhere = sum(count_accepted(node, job, state) for node in cluster) if _is_picky(job) else cluster.idle
    would_have: dict[str, float] = {}  # devices by node
    met: dict[str, list[tuple[int, Running]]] = {}  # by node; under "" on all nodes
    for running_rank, running in state.preemptible():
        if running_rank <= rank:
            break
        counts = count_gained(job, running, state)
        for name, count in counts.items() if by_node else ():
            if name in met:
                met[name].append((count, running))
                would_have[name] += count
            else:
                node = cluster.nodes[name]
                met[name] = [(count, running)]
                has = count_accepted(node, job, state) + count
                would_have[name] = has if able.nodes & node.bit else -math.inf
            if would_have[name] >= wanted:
                if not needs_host:
                    return without_spare(met[name], would_have[name] - wanted)
                on_node = [running for _, running in met[name]]
                if host_has_room(cluster.nodes[name], job, on_node):
                    return on_node
        if job.may_span_nodes and counts:
            met.setdefault("", []).append((sum(counts.values()), running))
            everywhere += sum(counts.values())
            if everywhere >= wanted and not needs_host:
                return without_spare(met[""], everywhere - wanted)
    return [running for _, running in met.get("", [])] if everywhere >= wanted else []


def _is_picky(job: Job) -> bool:
    """Return whether there may be devices that the job does not accept."""
    return bool(job.nodes or job.models or job.memory_mb)


def count_accepted(node: NodeState, job: Job, state: State) -> int:
    """Count the idle devices of the node that the job accepts."""
    if not node.idle or not _is_picky(job) or state.cluster.eligible(job).accepts_all & node.bit:
        return node.idle
    return sum(1 for each in node.devices if each.healthy and not each.holders and job.accepts(each.device))


def count_gained(job: Job, running: Running, state: State) -> dict[str, int]:
    """Count the devices by node that the job would gain if the running one were preempted."""
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


def without_spare(met: list[tuple[int, Running]], spare: float) -> list[Running]:
    """Return the jobs met, last in order first, without those whose devices are not needed."""
    needed = []
    for count, running in reversed(met):
        if count <= spare:
            spare -= count
        else:
            needed.append(running)
    return needed[::-1]
