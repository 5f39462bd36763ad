"""A-SRPT: a virtual machine as fast as the whole cluster decides in which order jobs get their devices."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Progress
from gpu_flows.schedulers.placement.base import ALL_NODES, candidate_nodes
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.durations import remaining_duration
from gpu_flows.schedulers.waiting_queue import WaitingJobs

DONE = 1e-6  # virtual seconds: less than this is a rounding error


class ASrptOptions(PlacementOptions):
    patience_s: float = Field(default=300.0, ge=0, title="Patience (s)")
    """How long a job that could start on scattered devices waits for better ones; 0 takes what is free."""

    skip: bool = Field(default=True, title="Skip what does not fit")
    """Let later jobs pass one that does not fit."""


class ASrpt(Policy[ASrptOptions]):
    """Jobs start in the order in which one machine as fast as the whole cluster would have ended them.

    That machine is virtual and runs preemptive SRPT, which is optimal for a single machine. A job's
    size there is its expected duration times its devices divided by those of the cluster. Jobs that it
    ends enter the real queue, which starts them in that order and never preempts. Luo, Liu, Lee and
    Shroff, "Prediction-Assisted Online Distributed Deep Learning Workload Scheduling in GPU Clusters",
    INFOCOM 2025 (arXiv 2501.05563).

    A job waits for the virtual machine even while devices are idle, so this is not work conserving. On
    a quiet cluster it does not wait long: the virtual machine gives it all devices at the same time, so
    it is done there after its own duration times its share of the cluster. Under load, long jobs wait
    there for the short ones.

    Traffic slows a job down whose devices are scattered, so it may wait for one server (whole servers,
    if it is wider than any), but no longer than `patience_s` after it could have started. The paper
    decides that from the job's graph, and predicts durations with a random forest. Here all jobs of
    several devices count as communication-heavy, durations are those given, and the bound, which the
    paper does not state, is an option. So is whether jobs may pass one that does not fit: then a wide
    one may starve. A job whose duration is neither stated nor predicted leaves the virtual machine
    after all others.
    """

    name = "a_srpt"
    needs = ("expected duration",)
    optimizes = "mean turnaround without preemption"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._machine = _VirtualMachine()
        self._entering: dict[str, tuple[Job, float]] = {}  # new since the last plan, with GPU-seconds left
        self._turns: dict[str, int] = {}  # the jobs that the virtual machine ended, numbered in that order
        self._last_turn = 0
        self._scattered: dict[str, float] = {}  # since when a job waits that could start, but scattered

    def rank(self, job: Job, progress: Progress) -> tuple[int, float]:
        turn = self._turns.get(job.id)
        if turn is not None:
            return (0, turn)
        service = max(0.0, remaining_duration(job, progress.work_s)) * job.gpus
        self._entering[job.id] = (job, service)
        return (1, service)

    def group(self, job: Job) -> object:
        return (job.request, job.queue_priority)  # so that jobs with a turn come first in every group

    def plan(self, state: State) -> None:
        next_end = self._run_machine(state)
        state.draft.wake_at(min(next_end, self._start_in_turn(state)))
        self._forget(state)

    def _run_machine(self, state: State) -> float:
        """Give the jobs that the virtual machine ended a turn. Return when it will end the next one."""
        machine, queue, speed = self._machine, state.queue, max(1, len(state.cluster.devices))
        ended = machine.run(state.now, speed, queue)
        for job, service in self._entering.values():
            if queue.get(job.id) is job:
                machine.add(job, service)
        self._entering.clear()
        ended += machine.run(state.now, speed, queue)  # jobs without any work, or of unknown duration
        for job in ended:
            self._last_turn += 1
            self._turns[job.id] = self._last_turn
            state.draft.rerank(job.id)
        return machine.next_end(speed)

    def _start_in_turn(self, state: State) -> float:
        """Start the jobs that have a turn and fit, in order. Return when the patience of one ends."""
        patience_ends = math.inf
        idle = state.cluster.idle if self.options.sharing == "exclusive" else None
        if idle == 0:
            return patience_ends
        for job in state.queue.candidates(idle if self.options.skip else None):
            if job.id not in self._turns:
                continue
            devices, until = self._place(job, state.now, state.cluster)
            patience_ends = min(patience_ends, until)
            if devices:
                state.draft.start(job, devices)
                self._scattered.pop(job.id, None)
            elif not self.options.skip:
                break
        return patience_ends

    def _place(self, job: Job, now: float, cluster: Cluster) -> tuple[tuple[Device, ...], float]:
        """Return devices for the job; or none, and until when it waits for better ones than there are."""
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
        """Return devices of one server, or of whole servers for a job that is wider than any."""
        share = min(job.gpus, max((len(node.devices) for node in cluster), default=0))
        nodes = candidate_nodes(job, share, cluster, self.options, ALL_NODES)
        enough = nodes.bit_count() * share >= job.gpus
        return self.options.place(job, cluster, among=nodes) if enough else ()

    def _forget(self, state: State) -> None:
        """Drop the turns of jobs that ended, from time to time."""
        if len(self._turns) > 2 * (len(state.running) + len(state.queue)) + 1_000:
            ended = [each for each in self._turns if each not in state.running and each not in state.queue]
            for job_id in ended:
                del self._turns[job_id]
                self._scattered.pop(job_id, None)


class _VirtualMachine:
    """Runs the job that has the least service left, and preempts it for one that has less."""

    def __init__(self) -> None:
        # a heap of queue priority, service left, arrival order and job
        self._jobs: list[tuple[int, float, tuple[int, float, str], Job]] = []
        self._now = 0.0

    def add(self, job: Job, service: float) -> None:
        heappush(self._jobs, (job.queue_priority, service, job.order, job))

    def run(self, now: float, speed: float, queue: WaitingJobs) -> list[Job]:
        """Run until now and return the jobs that ended, in that order. Drop jobs that do not wait."""
        jobs, ended = self._jobs, []
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
            ended.append(job)
            heappop(jobs)
        return ended

    def next_end(self, speed: float) -> float:
        return self._now + self._jobs[0][1] / speed if self._jobs else math.inf
