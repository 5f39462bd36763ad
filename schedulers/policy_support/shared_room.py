"""Preempting running jobs of a later rank so that a waiting job can start on devices that jobs share.

On a shared device a job gains the memory of every job that is preempted there. Not all of them have to go,
only as many as it takes until its own memory is free. A device that is measured as busy is available only
without any of its holders, because it is unknown which of them keeps it busy; without any holder, it is not
available.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpu_flows.schedulers.cluster.node_state import DeviceState, NodeState
from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import State


def make_shared_room(state: State, options: PlacementOptions, job: Job) -> bool:
    """Start the waiting job beside or in the place of running ones of a later rank. Return whether that
    succeeded."""
    preempted, devices = _SharedRoom(state, options, job).search()
    if not preempted:
        return False
    for running in preempted:
        state.draft.preempt(running.job.id)
    # A placement ignores devices that are measured as busy, even if nobody holds them any more.
    state.draft.start(job, options.place(job, state.cluster) or devices)
    return True


class _SharedRoom:
    """The search for jobs to preempt: up from the last in order, until a node (or all nodes together, for a
    job that may span them) would have the devices."""

    def __init__(self, state: State, options: PlacementOptions, job: Job) -> None:
        self._state, self._options, self._job = state, options, job
        self._eligible = state.cluster.eligible(job).nodes

    def search(self) -> tuple[list[Running], tuple[Device, ...]]:
        """Return the running jobs to preempt, the last in order first, and the devices that the job gets
        then; neither if that is not enough."""
        gpus, nodes = self._job.gpus, self._state.cluster.nodes
        spans = self._job.may_span_nodes and gpus > 1
        counts = {node.name: len(self._available([node], ())) for node in nodes.values()} if spans else {}
        everywhere = sum(counts.values())
        met: list[Running] = []
        met_on: dict[str, list[Running]] = {}
        for running in self._behind():
            met.append(running)
            for name in running.by_node:
                if name not in nodes:
                    continue
                met_on.setdefault(name, []).append(running)
                count = len(self._available([nodes[name]], met_on[name]))
                if count >= gpus:
                    return self._spare([nodes[name]], met_on[name])
                if spans:
                    everywhere += count - counts[name]
                    counts[name] = count
            if spans and everywhere >= gpus:
                return self._spare(list(nodes.values()), met)
        return [], ()

    def _behind(self) -> Iterator[Running]:
        """Iterate over the jobs that may be preempted for this one, the last in order first."""
        rank = self._state.queue.rank_of(self._job.id)
        for running_rank, running in self._state.preemptible():
            if running_rank <= rank:
                return
            yield running

    def _spare(
        self, nodes: Sequence[NodeState], met: Sequence[Running]
    ) -> tuple[list[Running], tuple[Device, ...]]:
        """Leave out the jobs that need not be preempted, the first in order first."""
        chosen = list(met)
        for running in reversed(met):
            fewer = [each for each in chosen if each is not running]
            if len(self._available(nodes, fewer)) >= self._job.gpus:
                chosen = fewer
        return chosen, tuple(self._available(nodes, chosen)[: self._job.gpus])

    def _available(self, nodes: Sequence[NodeState], preempted: Collection[Running]) -> list[Device]:
        """Return the devices on these nodes that the job could have without the preempted jobs."""
        job, gone = self._job, {running.job.id for running in preempted}
        found: list[Device] = []
        for node in nodes:
            if node.up and self._eligible & node.bit and host_has_room(node, job, preempted):
                found += [s.device for s in node.devices if self._would_fit(s, gone)]
        return found

    def _would_fit(self, device: DeviceState, gone: Collection[str]) -> bool:
        job = self._job
        if not device.healthy or not job.accepts(device.device):
            return False
        left = [job_id for job_id in device.holders if job_id not in gone]
        busy = device.utilization >= self._options.utilization_threshold
        if not left:
            return bool(device.holders) or not busy  # without holders, somebody else keeps it busy
        released = sum(share for job_id, share in device.holders.items() if job_id in gone)
        return not device.exclusive and not busy and 0 < job.memory_mb <= device.free_mb + released


def host_has_room(node: NodeState, job: Job, preempted: Collection[Running]) -> bool:
    """Return whether the node's processors and memory would suffice without the preempted jobs."""
    here = [running.job for running in preempted if node.name in running.by_node]
    cpus = node.free_cpus + sum(each.cpus for each in here)
    ram_mb = node.free_ram_mb + sum(each.ram_mb for each in here)
    return (not node.node.cpus or job.cpus <= cpus + 1e-9) and (not node.node.ram_mb or job.ram_mb <= ram_mb)
