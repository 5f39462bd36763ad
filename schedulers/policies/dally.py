"""Dally: a job waits for devices near each other, but only so long; the network decides who comes first.

In the order of the paper: the score that orders jobs, leases and preemption, offers and delay timers, and the
auto-tuner of the timers.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

from pydantic import Field

from gpu_flows.schedulers.model import Device, Job, Offer, Progress, Running, Tier
from gpu_flows.schedulers.policy import Options, Policy, State
from gpu_flows.schedulers.policy_support.leases import Leases
from gpu_flows.schedulers.policy_support.starting import run_by_rank_on
from gpu_flows.schedulers.policy_support.tiers import (
    EXCLUSIVE,
    NarrowestTiers,
    are_free,
    find_up_to,
    tier_offered,
)
from gpu_flows.schedulers.running_order import RunningRank

WIDER = {Tier.NODE: Tier.RACK, Tier.RACK: Tier.CLUSTER}
LEAST_NODE_TIMER, LEAST_RACK_TIMER = 6, 12  # leases; tuned timers are never shorter


class DallyOptions(Options):
    timers: Literal["tuned", "manual", "none", "consolidated"] = "tuned"
    """How long a job declines distant devices: as tuned by earlier waits, as set here, never, or always."""

    node_timer_s: float = Field(default=43_200.0, ge=0, title="Node timer (seconds)")
    """With manual timers: how long a job that fits on one node waits for one before it accepts one rack."""

    rack_timer_s: float = Field(default=86_400.0, ge=0, title="Rack timer (seconds)")
    """With manual timers: how long a job that fits in one rack waits for one before it takes any devices. It
    is at least the node timer."""

    lease_s: float = Field(default=3_600.0, ge=1, title="Lease (seconds)")
    """How long a job keeps its devices before it competes for them again. Tuned timers are whole leases."""

    history: int = Field(default=24, ge=1, title="History (leases)")
    """With tuned timers: how old a wait may be to count, and the longest timer."""


class Timers(NamedTuple):
    """How long a job declines devices outside one node, and outside one rack, in seconds."""

    node: float
    rack: float

    def of(self, tier: Tier) -> float:
        """Return how long a job declines devices of this tier."""
        return (0.0, self.node, self.rack)[tier]


class Dally(Policy[DallyOptions]):
    """A job waits for one node, then for one rack, then takes any devices; the most delayed job goes first.

    Sharma et al., "GPU Cluster Scheduling for Network-Sensitive Deep Learning", 2024 (arXiv 2401.16492); the
    rules follow the authors' simulator where the paper leaves them open. Jobs are ordered by work done per
    second run, which is below 1 if the network slowed a job down, and 0 if it never ran. A job keeps its
    devices for a lease; then a job with a lower score may have them. A job takes devices on one node at once,
    in one rack after its node timer, and anywhere after its rack timer. A job that no node (or rack) could
    ever hold does not wait for one. Tuned timers follow how long jobs for as many devices waited lately.

    Four things differ from the authors' simulator. There a job gives up its devices at the end of a lease and
    may have to wait for such again; here it keeps them until another job wants them, and only a job that
    could lie closer together competes at once. There a wait counts from when the job last got devices, here
    from when it was last stopped; the longer wait decides between equal scores. There the first node or rack
    with room is taken, here the fullest. The tuner learns only from jobs that may span nodes.

    It is not work conserving: devices stay idle while every waiting job declines them. Nothing must be known
    about a job. A job that may not span nodes always waits for one.
    """

    name = "dally"
    preempts = True
    moves_running = True
    optimizes = "turnaround of jobs that the network slows down"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._now = 0.0
        self._since: dict[str, float] = {}  # job id -> when its wait began: it arrived or was stopped
        self._leases = Leases(self.options.lease_s)
        self._narrowest = NarrowestTiers()
        self._accepts: dict[str, Tier] = {}  # the widest tier, of jobs that waited long enough
        self._patience: dict[tuple[int, Tier], list[tuple[float, str]]] = {}  # heaps of (since, job id)
        self._tuner = Tuner(self.options.lease_s, self.options.history)
        self._in_force: dict[int, Timers] = {}  # by number of devices, in this plan
        timers = self._find_timers(1)
        self._at_once = max(tier for tier in Tier if timers.of(tier) == 0)  # accepted without any wait

    def plan(self, state: State) -> None:
        self._now = state.now
        self._in_force.clear()
        if state.can_preempt:
            self._end_leases(state)
        self._end_patience(state)
        if len(state.queue):
            run_by_rank_on(
                state, lambda job: self._find(job, state), lambda job: self._make_room(job, state), EXCLUSIVE
            )
        wake_at = self._next_timer(state)
        if state.can_preempt:
            wake_at = min(wake_at, self._leases.next_end(state))
        state.draft.wake_at(max(wake_at, math.nextafter(state.now, math.inf)))  # a timer may be that short
        self._forget(state)

    # -- the order: network sensitivity, then the longest wait --------------------------------

    def rank(self, job: Job, progress: Progress) -> tuple[float, float]:
        since = self._since[job.id] = job.submitted if progress.stopped is None else progress.stopped
        accepted = self._accepted_by(job)
        if job.may_span_nodes and job.gpus > 1 and accepted < Tier.CLUSTER:
            heappush(self._patience.setdefault((job.gpus, accepted), []), (since, job.id))
        return sensitivity(progress), since

    def running_rank(self, running: Running) -> RunningRank | None:
        job_id = running.job.id
        if not running.devices:
            return None
        self._accepts.pop(job_id, None)
        self._leases.begin(running, self._now)
        if not self._leases.is_over(running):
            return None  # it is not preempted
        return RunningRank((sensitivity(running.progress(max(self._now, running.since))), running.since))

    # -- preemption: jobs whose lease is over compete again -----------------------------------

    def _end_leases(self, state: State) -> None:
        for running in self._leases.end_due(state):
            job = running.job
            if state.cluster.tier(running.devices) > self._narrowest.of(job, state.cluster):
                self._leases.let_move(running, state)  # see `_find`
            else:
                state.draft.rerank(job.id)

    # -- offers -------------------------------------------------------------------------------

    def _find(self, job: Job, state: State) -> tuple[Device, ...]:
        """Return idle devices that the job accepts; none if there are none, or it declines them."""
        kept = state.draft.taken_from(job.id)
        if are_free(job, kept, state.cluster):
            return self._improve(job, kept, state)
        devices = find_up_to(job, self._widest(job, state), state.cluster)
        if devices:
            self._accept(job, devices, state)
        else:
            self._decline(job, state)
        return devices

    def _improve(self, job: Job, kept: tuple[Device, ...], state: State) -> tuple[Device, ...]:
        """Return closer devices for a job whose lease is over, or else those that it has. None if it may get
        closer ones by preemption."""
        tier = state.cluster.tier(kept)
        if tier == Tier.NODE:
            return kept
        closer = Tier(tier - 1)
        devices = find_up_to(job, closer, state.cluster)
        if devices:
            self._accept(job, devices, state)
        elif not self._leases.can_make_room(state, job, closer):
            return kept
        return devices

    def _make_room(self, job: Job, state: State) -> bool:
        kept = state.draft.taken_from(job.id)
        widest = self._widest(job, state)
        if are_free(job, kept, state.cluster):
            widest = Tier(state.cluster.tier(kept) - 1)
        devices = self._leases.make_room(state, job, widest)
        if devices:
            self._accept(job, devices, state)
        devices = devices or kept
        if not are_free(job, devices, state.cluster):
            return False
        state.draft.start(job, devices)
        return True

    def _widest(self, job: Job, state: State) -> Tier:
        """Return the widest tier that the job accepts now."""
        if not job.may_span_nodes:
            return Tier.NODE
        return max(self._accepted_by(job), self._narrowest.of(job, state.cluster))

    def _accept(self, job: Job, devices: tuple[Device, ...], state: State) -> None:
        if job.may_span_nodes and job.gpus > 1:
            tier = state.cluster.tier(devices)
            if self.options.timers == "tuned":
                self._tuner.learn(job.gpus, tier, self._now, self._waited(job))
            self._note(job, tier, devices, True, state)

    def _decline(self, job: Job, state: State) -> None:
        """Note which devices the job declines, unless this is known already."""
        offered = tier_offered(job, state.cluster) if job.may_span_nodes and job.gpus > 1 else None
        if offered is None or offered <= self._widest(job, state):
            return
        declined = state.declined(job.id)
        timer = self._timers(job.gpus).of(offered)
        if declined is None or (declined.tier, declined.patience_s) != (offered, timer):
            devices = find_up_to(job, offered, state.cluster)
            if devices:  # none if the idle devices are not all such as the job wants
                self._note(job, offered, devices, False, state)

    def _note(self, job: Job, tier: Tier, devices: tuple[Device, ...], accepted: bool, state: State) -> None:
        patience = self._timers(job.gpus).of(tier) if tier > self._narrowest.of(job, state.cluster) else 0.0
        slowdown = state.network(job, state.cluster.shape(devices))
        score = sensitivity(state.queue.progress(job.id))
        state.draft.note(Offer(job, tier, accepted, self._waited(job), patience, slowdown, score))

    # -- delay timers -------------------------------------------------------------------------

    def _waited(self, job: Job) -> float:
        return max(0.0, self._now - self._since.get(job.id, job.submitted))

    def _accepted_by(self, job: Job) -> Tier:
        return self._accepts.get(job.id, self._at_once)

    def group(self, job: Job) -> object:
        """The jobs of a group accept the same devices: they have the same request and the same patience."""
        return job.request, self._accepted_by(job)

    def _timers(self, gpus: int) -> Timers:
        timers = self._in_force.get(gpus)
        if timers is None:
            timers = self._in_force[gpus] = self._find_timers(gpus)
        return timers

    def _find_timers(self, gpus: int) -> Timers:
        options = self.options
        if options.timers == "manual":
            return Timers(options.node_timer_s, max(options.node_timer_s, options.rack_timer_s))
        if options.timers == "none":
            return Timers(0.0, 0.0)
        return (
            self._tuner.timers(gpus, self._now) if options.timers == "tuned" else Timers(math.inf, math.inf)
        )

    def _end_patience(self, state: State) -> None:
        """Let the jobs whose timer is over accept the next tier, also if the timer is raised later."""
        for accepted in WIDER:  # the narrow tier first: both timers of a job may be over
            for gpus in [gpus for gpus, tier in self._patience if tier == accepted]:
                timer = self._timer_after(gpus, accepted)
                while self._first_patient(gpus, accepted, state) + timer <= state.now:
                    job_id = heappop(self._patience[gpus, accepted])[1]
                    self._accepts[job_id] = WIDER[accepted]
                    state.draft.rerank(job_id)
                if not self._patience[gpus, accepted]:
                    del self._patience[gpus, accepted]

    def _first_patient(self, gpus: int, accepted: Tier, state: State) -> float:
        """Return when the wait of the first job began that accepts no more than that tier."""
        heap = self._patience[gpus, accepted]
        while heap:
            since, job_id = heap[0]
            job = state.queue.get(job_id)
            if job and self._since[job_id] == since and self._accepted_by(job) == accepted:
                return since
            heappop(heap)
        return math.inf

    def _timer_after(self, gpus: int, accepted: Tier) -> float:
        """Return how long a job waits that accepts no more than that tier."""
        timers = self._timers(gpus)
        return timers.node if accepted == Tier.NODE else timers.rack

    def _next_timer(self, state: State) -> float:
        """Return when the next timer is over of a job for which enough devices are idle."""
        return min(
            (
                self._first_patient(gpus, accepted, state) + self._timer_after(gpus, accepted)
                for gpus, accepted in self._patience
                if gpus <= state.cluster.idle
            ),
            default=math.inf,
        )

    def _forget(self, state: State) -> None:
        """Drop what is known of jobs that ended, from time to time."""
        if len(self._since) > 2 * (len(state.running) + len(state.queue)) + 1_000:
            for table in (self._since, self._accepts):
                for job_id in [
                    each for each in table if each not in state.running and each not in state.queue
                ]:
                    del table[job_id]


def sensitivity(progress: Progress) -> float:
    """Return the work done per second run: 1 if the network never slowed the job down, 0 if it never ran."""
    return progress.work_s / progress.ran_s if progress.ran_s > 0 else 0.0


# -- the auto-tuner -----------------------------------------------------------------------------


class Tuner:
    """Sets both timers for each number of devices, from how long jobs for as many lately waited.

    In leases: the node timer is the mean wait for one node plus two standard deviations, but at least 6 and
    at most 0.8 times the history; the rack timer follows the waits for one rack, at least 12 and at most the
    history. They are rounded up. Without a wait in the history the mean is 1.
    """

    def __init__(self, lease_s: float, history: int) -> None:
        self._lease_s, self._history = lease_s, history
        self._waits: dict[tuple[int, Tier], Waits] = {}

    def learn(self, gpus: int, tier: Tier, now: float, waited_s: float) -> None:
        """Learn how long a job waited for such devices. For one node only waits of a lease or more count."""
        leases = waited_s / self._lease_s
        if tier == Tier.RACK or (tier == Tier.NODE and leases >= 1):
            self._waits.setdefault((gpus, tier), Waits(self._history * self._lease_s)).add(now, leases)

    def timers(self, gpus: int, now: float) -> Timers:
        node = max(LEAST_NODE_TIMER, math.ceil(self._bound(gpus, Tier.NODE, now)))
        rack = max(LEAST_RACK_TIMER, math.ceil(self._bound(gpus, Tier.RACK, now)))
        longest = math.ceil(0.8 * self._history)
        return Timers(min(longest, node) * self._lease_s, min(self._history, rack) * self._lease_s)

    def _bound(self, gpus: int, tier: Tier, now: float) -> float:
        waits = self._waits.get((gpus, tier))
        return waits.bound(now) if waits else 1.0


class Waits:
    """The waits that ended lately."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._entries: deque[tuple[float, float]] = deque()  # when, and how many leases
        self._sum = self._squares = 0.0

    def add(self, now: float, leases: float) -> None:
        self._drop_old(now)
        self._entries.append((now, leases))
        self._sum += leases
        self._squares += leases * leases

    def bound(self, now: float) -> float:
        """Return mean plus two standard deviations of the waits; 1 without any."""
        self._drop_old(now)
        count = len(self._entries)
        if not count:
            return 1.0
        mean = self._sum / count
        return mean + 2 * math.sqrt(max(0.0, self._squares / count - mean * mean))

    def _drop_old(self, now: float) -> None:
        while self._entries and self._entries[0][0] <= now - self._kept_s:
            _, leases = self._entries.popleft()
            self._sum -= leases
            self._squares -= leases * leases
        if not self._entries:
            self._sum = self._squares = 0.0  # no rounding error outlives the entries
