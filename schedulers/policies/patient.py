"""Patient: a job waits for nearer devices as long as the wait costs less than the distance would."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Any, NamedTuple

from pydantic import Field

from gpu_flows.schedulers.cluster.node_state import NodeSet
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Offer, Progress, Running, Tier
from gpu_flows.schedulers.network.shape import NetworkSlowdown, no_slowdown
from gpu_flows.schedulers.policy import Options, Policy, State
from gpu_flows.schedulers.policy_support.layouts import LeastSlowdowns, find_nearest, slowdown_on
from gpu_flows.schedulers.policy_support.leases import Leases
from gpu_flows.schedulers.policy_support.starting import run_by_rank_on
from gpu_flows.schedulers.policy_support.tiers import EXCLUSIVE, are_free, tier_offered, tiers_up_to
from gpu_flows.schedulers.running_order import RunningRank


class PatientOptions(Options):
    lease_s: float = Field(default=900.0, ge=1, title="Lease (seconds)")
    """How long a job keeps its devices before an earlier job may have them, or it moves to nearer ones."""

    move_s: float = Field(default=60.0, ge=0, title="Cost of a move (seconds)")
    """A running job is moved to nearer devices if that saves it more time than this."""

    unknown_s: float = Field(default=43_200.0, gt=0, title="Least remaining time (seconds)")
    """A job of unknown duration is expected to take as long again as it worked, but at least this long."""


class Wait(NamedTuple):
    """The wait of a job: when it began, and how much work the job has left."""

    since: float
    left_s: float


class Patience(NamedTuple):
    """When a waiting job accepts the nearest devices of a wider tier. Void once its wait has changed."""

    accepts_at: float
    job_id: str
    tier: Tier
    wait: Wait


class Patient(Policy[PatientOptions]):
    """The job with the least service left goes first, and waits for near devices while that pays off.

    A policy of ours, after Dally's idea that a job may decline distant devices. Dally's timers are the same
    for all jobs for as many devices. Here a job declines devices as long as it has waited for less time than
    it would lose on them: its remaining time, multiplied by how much more than the nearest devices they slow
    it down. So a job that the network hardly slows down, or that is almost done, takes what is free, and a
    sensitive long one waits. By declining, it loses at most as much again as what it finally takes costs it.

    Jobs are ordered by remaining time multiplied by devices. After its lease a job may be preempted for an
    earlier one, or moved to nearer devices. Of several ways to lay a job out it takes the one on which the
    network slows it down least; this prefers equal parts. The slowdowns are those of the pool's network
    table. A job of unknown duration is expected to take as long again as it worked so far.

    It is not work conserving, and a wide long job may starve under steady load.
    """

    name = "patient"
    preempts = True
    moves_running = True
    needs = ("expected duration",)
    optimizes = "mean turnaround of jobs that the network slows down"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._now = 0.0
        self._state: State | None = None  # of the last plan
        self._network: NetworkSlowdown = no_slowdown  # of the last plan
        self._service_version = -1  # of the cluster in the last plan
        self._waits: dict[str, Wait] = {}  # by job id
        self._accepted: dict[str, Tier] = {}  # the widest tier, of jobs that waited long enough
        self._patience: dict[int, list[Patience]] = {}  # by number of devices, heaps
        self._leases = Leases(self.options.lease_s)
        self._least = LeastSlowdowns()

    def plan(self, state: State) -> None:
        self._now = state.now
        self._follow_network(state)
        if state.can_preempt:
            self._end_leases(state)
        self._end_patience(state)
        if len(state.queue):
            run_by_rank_on(
                state, lambda job: self._find(job, state), lambda job: self._make_room(job, state), EXCLUSIVE
            )
        if state.can_preempt:
            state.draft.wake_at(self._leases.next_end(state))
        self._wake_for_patience(state)
        self._forget(state)

    def _follow_network(self, state: State) -> None:
        """Rank all jobs again once what near and distant devices cost them is known, or has changed."""
        version = state.cluster.service_version
        if (self._state, self._network, self._service_version) != (state, state.network, version):
            self._state, self._network, self._service_version = state, state.network, version
            state.draft.rerank_all()

    # -- the order: remaining service ---------------------------------------------------------

    def rank(self, job: Job, progress: Progress) -> float:
        since = job.submitted if progress.stopped is None else progress.stopped
        left_s = self._left(job, progress.work_s)
        self._waits[job.id] = Wait(since, left_s)
        self._begin_patience(job)
        return left_s * self._best(job) * job.gpus

    def running_rank(self, running: Running) -> RunningRank | None:
        if not running.devices:
            return None
        self._accepted.pop(running.job.id, None)
        self._leases.begin(running, self._now)
        if not self._leases.is_over(running):
            return None  # it is not preempted
        return RunningRank(self._left_of(running) * self._best(running.job) * running.job.gpus)

    def group(self, job: Job) -> object:
        """The jobs of a group accept the same tiers. One that declines must not hide those that accept."""
        return job.request, job.kind, self._widest(job)

    def _best(self, job: Job) -> float:
        """Return the slowdown of the job on the nearest devices that the cluster could offer."""
        least = min(self._least_slowdowns(job))
        return least if least < math.inf else 1.0

    def _least_slowdowns(self, job: Job) -> tuple[float, float, float]:
        """Return how much each tier slows the job down at least; as if it did not before the first plan."""
        return self._least.of(job, self._state) if self._state else (1.0, 1.0, 1.0)

    def _left(self, job: Job, work_s: float) -> float:
        """Return how long the job will still take on near devices."""
        if job.expected_s is None:
            return max(work_s, self.options.unknown_s)
        return abs(job.expected_s - work_s)  # a late job is expected to take as long again as it is late

    def _left_of(self, running: Running) -> float:
        return self._left(running.job, running.work(max(self._now, running.since)))

    # -- leases: a job that has had its devices for a while may be preempted, or move ---------

    def _end_leases(self, state: State) -> None:
        for running in self._leases.end_due(state):
            excess = slowdown_on(running.job, running.devices, state) - self._best(running.job)
            if self._left_of(running) * excess > self.options.move_s:
                self._leases.let_move(running, state)  # see `_improve`
            else:
                state.draft.rerank(running.job.id)

    # -- offers: accepted if the wait so far has cost as much as the distance would ------------

    def _find(self, job: Job, state: State) -> tuple[Device, ...]:
        """Return idle devices that the job accepts; none if there are none, or it declines them."""
        kept = state.draft.taken_from(job.id)
        if are_free(job, kept, state.cluster):
            return self._improve(job, kept, state)
        if state.cluster.idle < job.gpus:
            return ()
        for tier in tiers_up_to(self._widest(job)):
            devices, slowdown = find_nearest(job, tier, state)
            if devices and self._accepts(job, slowdown):
                self._note(job, devices, slowdown, True, state)
                return devices
        self._decline(job, state)
        return ()

    def _improve(self, job: Job, kept: tuple[Device, ...], state: State) -> tuple[Device, ...]:
        """Return nearer devices for a job whose lease is over, if worth the move, or else its own."""
        before = slowdown_on(job, kept, state)
        for tier in tiers_up_to(state.cluster.tier(kept)):
            devices, slowdown = find_nearest(job, tier, state)
            if devices and self._waits[job.id].left_s * (before - slowdown) > self.options.move_s:
                self._note(job, devices, slowdown, True, state)
                return devices
        return kept

    def _make_room(self, job: Job, state: State) -> bool:
        """Start the job on devices of later jobs, if there are some in its narrowest tier that it accepts."""
        slowdowns = self._least_slowdowns(job)

        def find(job: Job, tier: Tier, cluster: Cluster, among: NodeSet) -> tuple[Device, ...]:
            devices, slowdown = find_nearest(job, tier, state, among)
            return devices if self._accepts(job, slowdown) else ()

        nearest = Tier(slowdowns.index(min(slowdowns)))
        devices = self._leases.make_room(state, job, nearest, find)
        if devices:
            self._note(job, devices, slowdown_on(job, devices, state), True, state)
            state.draft.start(job, devices)
        return bool(devices)

    def _accepts(self, job: Job, slowdown: float) -> bool:
        """Return whether the job has waited long enough for devices that slow it down so much."""
        return self._accepts_at(job, slowdown) <= self._now

    def _accepts_at(self, job: Job, slowdown: float) -> float:
        if slowdown == math.inf:
            return math.inf  # it does not fit there, even if it takes no time and so would lose none
        cost = self._cost(job, slowdown)
        return self._waits[job.id].since + cost if cost > 0 else -math.inf

    def _cost(self, job: Job, slowdown: float) -> float:
        """Return how much time the job would lose on such devices, compared with the nearest ones."""
        return self._waits[job.id].left_s * (slowdown - self._best(job))

    def _waited(self, job: Job) -> float:
        return max(0.0, self._now - self._waits[job.id].since)

    def _decline(self, job: Job, state: State) -> None:
        """Note which devices the job declines, unless it has declined such before. If it accepts devices of
        their tier, but not these, which are worse than the least, ask for a plan when it will."""
        tier = tier_offered(job, state.cluster) if job.may_span_nodes and job.gpus > 1 else None
        if tier is None:
            return
        slowdown = self._least_slowdowns(job)[tier]
        declined = state.declined(job.id)
        is_new = declined is None or declined.tier != tier
        if is_new or self._accepts(job, slowdown):
            devices, slowdown = find_nearest(job, tier, state)
            if is_new and devices:
                self._note(job, devices, slowdown, False, state)
            if (accepts_at := self._accepts_at(job, slowdown)) > self._now:
                state.draft.wake_at(accepts_at)

    def _note(
        self, job: Job, devices: tuple[Device, ...], slowdown: float, accepted: bool, state: State
    ) -> None:
        if job.may_span_nodes and job.gpus > 1:
            tier, cost = state.cluster.tier(devices), self._cost(job, slowdown)
            state.draft.note(Offer(job, tier, accepted, self._waited(job), cost, slowdown))

    # -- patience: which tiers a job accepts by now -------------------------------------------

    def _widest(self, job: Job) -> Tier:
        """Return the widest tier of which the job accepts the nearest devices."""
        least, best = self._least_slowdowns(job), self._best(job)
        at_once = max(tier for tier in Tier if tier == Tier.NODE or least[tier] <= best)
        return max(at_once, self._accepted.get(job.id, Tier.NODE))

    def _begin_patience(self, job: Job) -> None:
        """Remember when the job will accept a wider tier than it does now."""
        least, widest = self._least_slowdowns(job), self._widest(job)
        wider = [(self._accepts_at(job, least[tier]), -tier) for tier in Tier if tier > widest]
        accepts_at, tier = min(wider, default=(math.inf, 0))
        if accepts_at < math.inf:
            patience = Patience(accepts_at, job.id, Tier(-tier), self._waits[job.id])
            heappush(self._patience.setdefault(job.gpus, []), patience)

    def _end_patience(self, state: State) -> None:
        for gpus in list(self._patience):
            while (first := self._first_patience(gpus, state)) and first.accepts_at <= state.now:
                heappop(self._patience[gpus])
                self._accepted[first.job_id] = first.tier
                state.draft.rerank(first.job_id)
            if not self._patience[gpus]:
                del self._patience[gpus]

    def _first_patience(self, gpus: int, state: State) -> Patience | None:
        """Return what ends first of the patience of the waiting jobs for so many devices."""
        heap = self._patience[gpus]
        while heap:
            if heap[0].job_id in state.queue and self._waits[heap[0].job_id] is heap[0].wait:
                return heap[0]
            heappop(heap)
        return None

    def _wake_for_patience(self, state: State) -> None:
        """Ask for a plan when the next job will accept more, of those for which enough devices are idle."""
        for gpus in self._patience:
            if gpus <= state.cluster.idle and (first := self._first_patience(gpus, state)):
                state.draft.wake_at(max(first.accepts_at, math.nextafter(state.now, math.inf)))

    def _forget(self, state: State) -> None:
        """Drop what is known of jobs that ended, from time to time."""
        if len(self._waits) > 2 * (len(state.running) + len(state.queue)) + 1_000:
            for table in (self._waits, self._accepted):
                for job_id in [
                    each for each in table if each not in state.running and each not in state.queue
                ]:
                    del table[job_id]
