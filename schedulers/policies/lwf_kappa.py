"""LWF-kappa: narrow jobs go to the devices with the least work left, wide ones stay together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import islice

from pydantic import Field

from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Progress
from gpu_flows.schedulers.placement.base import ALL_NODES, SharingOptions, available_devices, candidate_nodes
from gpu_flows.schedulers.placement.linked import prefer_linked
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.durations import remaining_duration
from gpu_flows.schedulers.policy_support.starting import start_in_order_on


class LwfKappaOptions(SharingOptions):
    kappa: int = Field(default=1, ge=0)
    """A job that asks for more devices than this is kept together; others are placed anywhere."""


class LwfKappa(Policy[LwfKappaOptions]):
    """The job with the least service left goes where the least work is left; a wide one stays together.

    Least workload first: Wang, Shi, Wang and Chu, "Communication Contention Aware Scheduling of
    Multiple Deep Learning Training Jobs", 2020 (arXiv 2002.10105). A device's work is what its holders
    have left to do. A job of at most `kappa` devices takes those with the least work; a wider one goes
    through the nodes in order of their total work, so that little of it has to cross the network.

    In the paper, jobs share a device as long as its memory lasts: that is `sharing: shared` here. With
    exclusive devices all free devices have no work left, so the rule decides only between nodes,
    and narrow jobs get the first free devices. In either case a wide job is split only if no node
    can hold all of it. The paper's second half, which makes network transfers wait for each other,
    does not concern a scheduler that hands out devices.

    It never preempts and is work conserving. Jobs that do not fit are passed over, so a wide long job
    may starve. A job whose duration is neither stated nor predicted counts as endless.
    """

    name = "lwf_kappa"
    needs = ("expected duration",)
    optimizes = "mean turnaround, with little traffic between nodes"
    promises = ("work conserving",)

    def rank(self, job: Job, progress: Progress) -> float:
        return remaining_duration(job, progress.work_s) * job.gpus

    def plan(self, state: State) -> None:
        work = _Work(state)

        def place(job: Job) -> tuple[Device, ...]:
            devices = self._choose(job, state.cluster, work)
            devices = prefer_linked(job, devices, state.cluster, self.options)
            work.forget(devices)  # the job is about to add to their work
            return devices

        start_in_order_on(state, place, self.options)

    def _choose(self, job: Job, cluster: Cluster, work: _Work) -> tuple[Device, ...]:
        """Return devices for the job, or none."""
        narrow = job.gpus <= self.options.kappa
        if narrow and (job.may_span_nodes or job.gpus == 1):
            return self._anywhere(job, cluster, work)

        def load(node: NodeState) -> float:
            """Return the work on the devices for a narrow job; on the whole node for a wide one."""
            if not narrow:
                return work.of(node)
            return sum(map(work.on, self._offers(node, job, job.gpus, cluster, work)))

        for node in sorted(self._nodes(job, job.gpus, cluster, work), key=load):
            devices = self._offers(node, job, job.gpus, cluster, work)
            if len(devices) == job.gpus:
                return tuple(devices)
        return self._split(job, cluster, work) if job.may_span_nodes else ()

    def _anywhere(self, job: Job, cluster: Cluster, work: _Work) -> tuple[Device, ...]:
        """Return the devices with the least work on any nodes."""
        idle = self._idle(job, cluster)
        if len(idle) == job.gpus or self.options.sharing == "exclusive":
            return idle if len(idle) == job.gpus else ()
        nodes = self._nodes(job, 1, cluster, work)
        every = (
            each for node in nodes for each in available_devices(node, job, len(node.devices), self.options)
        )
        devices = nsmallest(job.gpus, every, key=work.on)
        return tuple(devices) if len(devices) == job.gpus else ()

    def _idle(self, job: Job, cluster: Cluster) -> tuple[Device, ...]:
        """Return the first free devices: none has less work."""
        nodes = cluster.nodes_in(cluster.eligible(job).nodes & cluster.with_idle(1))
        every = (
            each for node in nodes for each in available_devices(node, job, len(node.devices), self.options)
        )
        return tuple(islice((each for each in every if not cluster.devices[each.id].holders), job.gpus))

    def _split(self, job: Job, cluster: Cluster, work: _Work) -> tuple[Device, ...]:
        """Return devices of several nodes, those with the least work first."""
        found: list[Device] = []
        for node in sorted(self._nodes(job, 1, cluster, work), key=work.of):
            found += self._offers(node, job, job.gpus - len(found), cluster, work)
            if len(found) == job.gpus:
                return tuple(found)
        return ()

    def _nodes(self, job: Job, gpus: int, cluster: Cluster, work: _Work) -> Iterator[NodeState]:
        """Iterate over all nodes that have this many devices for the job, and perhaps a few more."""
        nodes = candidate_nodes(job, gpus, cluster, self.options, ALL_NODES)
        return cluster.nodes_in(nodes if self.options.sharing == "exclusive" else nodes & work.room(job))

    def _offers(self, node: NodeState, job: Job, gpus: int, cluster: Cluster, work: _Work) -> list[Device]:
        """Return at most this many of the node's devices for the job, those with the least work first."""
        pure = bool(cluster.eligible(job).accepts_all & node.bit)
        return nsmallest(
            gpus, available_devices(node, job, len(node.devices), self.options, pure), key=work.on
        )


class _Work:
    """How much work is left on devices and nodes, computed when it is needed."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._on: dict[str, float] = {}
        self._of: dict[str, float] = {}
        self._room: dict[int, int] = {}

    def on(self, device: Device) -> float:
        """Return the seconds of work that the device's holders have left."""
        found = self._on.get(device.id)
        if found is None:
            running, now = self._state.running, self._state.now
            holders = [running[job_id] for job_id in self._state.cluster.devices[device.id].holders]
            found = sum(max(0.0, remaining_duration(each.job, each.work(now))) for each in holders)
            self._on[device.id] = found
        return found

    def of(self, node: NodeState) -> float:
        """Return the work left on all devices of a node together."""
        found = self._of.get(node.name)
        if found is None:
            busy = (each.device for each in node.devices if each.holders)
            found = self._of[node.name] = sum(map(self.on, busy))
        return found

    def room(self, job: Job) -> int:
        """Return the nodes where some device had room for such a job when this was first asked."""
        found = self._room.get(job.memory_mb)
        if found is None:
            roomy = (node for node in self._state.cluster if any(each.fits(job) for each in node.devices))
            found = self._room[job.memory_mb] = sum(node.bit for node in roomy)
        return found

    def forget(self, devices: Iterable[Device]) -> None:
        """Drop what is known about these devices, because another job gets them."""
        for device in devices:
            self._on.pop(device.id, None)
            self._of.pop(device.node, None)
