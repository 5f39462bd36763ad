"""A-SRPT: a virtual machine as fast as the whole cluster says in which order jobs get their devices."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Plan, Progress
from gpu_flows.schedulers.placement.base import ALL_NODES, candidate_nodes
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.starting import expected
from gpu_flows.schedulers.waiting_queue import WaitingQueue

DONE = 1e-6  # virtual seconds: less than this is rounding


class ASrptOptions(PlacementOptions):
    patience_s: float = Field(
        default=300.0,
        ge=0,
        title="Patience (s)",
        description="How long a job of several devices that could start scattered waits for a place "
        "where it is not; 0 takes what is free.",
    )
    skip: bool = Field(
        default=True,
        title="Skip what does not fit",
        description="Let later jobs pass one that does not fit.",
    )


class ASrpt(Policy):
    """Jobs start in the order in which one machine as fast as the whole cluster would have ended them.

    That machine is virtual and runs preemptive SRPT, which is best possible for a single machine. A
    job's size there is its expected duration times its devices over those of the cluster. What it
    ends enters the real queue, which is served in that order and never preempts. Luo, Liu, Lee and
    Shroff, "Prediction-Assisted Online Distributed Deep Learning Workload Scheduling in GPU Clusters",
    INFOCOM 2025 (arXiv 2501.05563).

    A job waits for the virtual machine even while devices are idle, so this is not work conserving. On
    a quiet cluster it does not wait for long: the virtual machine gives it all devices at once, so it
    is through after its own duration times its share of the cluster. Under load, long jobs wait there
    for the short ones.

    Traffic makes a job of several devices slow where it is scattered, so it may wait for one server
    (whole servers, if it is wider than any), but no longer than `patience_s` after it could have
    started. The paper decides that from the job's graph, and finds durations by a random forest; here
    all jobs of several devices count as talkative, durations are those given, and the bound, which we
    do not know from the paper, is an option. So is whether jobs may pass one that does not fit: then a
    wide one may starve. A job that states no duration leaves the virtual machine when all others have.
    """

    name = "a_srpt"
    Options = ASrptOptions
    options: ASrptOptions
    needs = ("expected duration",)
    optimizes = "mean turnaround without preemption"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._machine = _VirtualMachine()
        self._entering: dict[str, tuple[Job, float]] = {}  # since the last plan, with GPU-seconds to go
        self._turns: dict[str, int] = {}  # who left the virtual machine, numbered in that order
        self._left = 0
        self._scattered: dict[str, float] = {}  # since when a job waits that could start, but scattered

    def rank(self, job: Job, progress: Progress) -> Any:
        turn = self._turns.get(job.id)
        if turn is not None:
            return (0, job.queue_priority, turn)
        service = max(0.0, expected(job) - progress.work_s) * job.gpus
        self._entering[job.id] = (job, service)
        return (1, job.queue_priority, service, job.submitted, job.id)

    def plan(self, state: State) -> Plan:
        next_through = self._let_go(state)
        wake_at = min(next_through, self._serve(state))
        self._forget(state)
        return state.draft.plan(wake_at if wake_at < math.inf else None)

    def _let_go(self, state: State) -> float:
        """Put those who left the virtual machine in the real queue. When the next one will."""
        machine, queue, speed = self._machine, state.queue, max(1, len(state.cluster.devices))
        through = machine.run(state.now, speed, queue)
        for job, service in self._entering.values():
            if queue.get(job.id) is job:
                machine.enter(job, service)
        self._entering.clear()
        through += machine.run(state.now, speed, queue)  # those that need nothing, or nobody knows what
        for job in through:
            self._left += 1
            self._turns[job.id] = self._left
            queue.add(job, queue.remove(job.id))
        return machine.next_end(speed)

    def _serve(self, state: State) -> float:
        """Start who fits, in order. When somebody's patience ends."""
        cluster, draft, turns = state.cluster, state.draft, self._turns
        idle = cluster.idle if self.options.sharing == "exclusive" else None
        patience_ends = math.inf
        if idle == 0:
            return patience_ends
        heads = [
            head for head in state.queue.heads(idle if self.options.skip else None) if head[2].id in turns
        ]
        heapify(heads)
        while heads:
            _, _, job, group = heads[0]
            devices, until = self._place(job, state.now, cluster)
            patience_ends = min(patience_ends, until)
            if devices:
                draft.start(job, devices)
                self._scattered.pop(job.id, None)
                following = group.head()
                if following and following[2].id in turns:
                    heapreplace(heads, (*following, group))
                    continue
            elif not self.options.skip:
                break
            heappop(heads)
        return patience_ends

    def _place(self, job: Job, now: float, cluster: Cluster) -> tuple[tuple[Device, ...], float]:
        """The devices for the job; or none, and until when it waits for better ones than there are."""
        options = self.options
        if job.gpus == 1 or not job.may_span_nodes or options.sharing == "shared":
            return options.place(job, cluster), math.inf
        devices = self._together(job, cluster)
        if not devices and (scattered := options.place(job, cluster)):
            until = self._scattered.setdefault(job.id, now) + options.patience_s
            if now < until:
                return (), until
            devices = scattered
        return devices, math.inf

    def _together(self, job: Job, cluster: Cluster) -> tuple[Device, ...]:
        """Devices of one server, or of whole servers for a job that is wider than any."""
        share = min(job.gpus, max((len(node.devices) for node in cluster), default=0))
        nodes = candidate_nodes(job, share, cluster, self.options, ALL_NODES)
        enough = nodes.bit_count() * share >= job.gpus
        return self.options.place(job, cluster, among=nodes) if enough else ()

    def _forget(self, state: State) -> None:
        """Let go of jobs that are gone, now and then."""
        if len(self._turns) > 2 * (len(state.running) + len(state.queue)) + 1_000:
            gone = [each for each in self._turns if each not in state.running and each not in state.queue]
            for job_id in gone:
                del self._turns[job_id]
                self._scattered.pop(job_id, None)


class _VirtualMachine:
    """Runs the job that has the least left, and drops it for one that has less."""

    def __init__(self) -> None:
        self._jobs: list[
            tuple[int, float, tuple[int, float, str], Job]
        ] = []  # heap; the second: what is left
        self._now = 0.0

    def enter(self, job: Job, service: float) -> None:
        heappush(self._jobs, (job.queue_priority, service, job.order, job))

    def run(self, now: float, speed: float, queue: WaitingQueue) -> list[Job]:
        """Work until now. Who is through, in that order; jobs that no longer wait in queue are dropped."""
        jobs, through = self._jobs, []
        spare, self._now = now - self._now, now
        while jobs:
            priority, left, order, job = jobs[0]
            if queue.get(job.id) is not job:
                heappop(jobs)
                continue
            if spare + DONE < left / speed < math.inf:
                jobs[0] = (priority, left - spare * speed, order, job)
                break
            spare = max(0.0, spare - left / speed)
            through.append(job)
            heappop(jobs)
        return through

    def next_end(self, speed: float) -> float:
        return self._now + self._jobs[0][1] / speed if self._jobs else math.inf
