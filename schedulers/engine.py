"""The engine: owns the waiting jobs, the running jobs and the devices, and is the only one that allocates.

Two drivers use it, a live one with the real clock and a simulated one with an event heap. They report
what happened (submit, started, ended ...) and then call `tick`, which lets the policy plan once for all
of it and returns the actions to carry out. Every move of a plan is checked as it is made. If a policy
raises, exits or tries an invalid move, its plan is rolled back and FIFO decides until the policy is swapped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from traceback import walk_tb

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import (
    NO_PROGRESS,
    Action,
    Device,
    Job,
    Node,
    Offer,
    Plan,
    Progress,
    Reason,
    Refuse,
    Running,
    Start,
)
from gpu_flows.schedulers.network.shape import NetworkSlowdown, no_slowdown
from gpu_flows.schedulers.offer_log import Declined, OfferLog
from gpu_flows.schedulers.plan_draft import Draft, InvalidMove, ProtectedJob
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import Policy, PolicyFailed, Slowdown, Speed, State, linear
from gpu_flows.schedulers.prediction.gavel_pairs import gavel_slowdown
from gpu_flows.schedulers.protection import UNPROTECTED, Protection
from gpu_flows.schedulers.reasons import count_reasons, explain_queue, find_refusal
from gpu_flows.schedulers.running_order import RunningOrder
from gpu_flows.schedulers.waiting_queue import WaitingQueue

FAILURES = (Exception, SystemExit)  # what a policy may raise without harm to others

# An error that these raise is reported with the line of the policy that called them.
_CORE = {__name__, *(each.__module__ for each in (Draft, WaitingQueue, RunningOrder))}


class Engine:
    def __init__(
        self,
        nodes: Iterable[Node],
        policy: Policy,
        can_preempt: bool = False,
        speed: Speed = linear,
        protection: Protection = UNPROTECTED,
        slowdown: Slowdown = gavel_slowdown,
        network: NetworkSlowdown = no_slowdown,
    ) -> None:
        self.cluster = Cluster(nodes)
        self.policy = policy
        self.can_preempt, self.protection = can_preempt, protection
        self.policy_error = ""  # why FIFO decides in the policy's place, until it is swapped
        self.running: dict[str, Running] = {}
        self.wake_at: float | None = None
        self.offers: tuple[Offer, ...] = ()  # that the last plan made and that were no repetitions
        self._offer_log = OfferLog()
        self._fallback: Policy = Fifo()
        self._queue = WaitingQueue(policy)
        self._running_order = RunningOrder(policy)
        self._draft = Draft(self.cluster, self._queue, self.running, self._running_order, can_preempt)
        self._state = State(
            0.0,
            self._queue,
            self.running,
            self._running_order,
            self.cluster,
            self._draft,
            can_preempt,
            speed,
            slowdown,
            network,
            self._offer_log,
        )
        self._unchecked: list[Job] = []  # new jobs: whether the cluster could ever hold them is not known yet
        self._changed = True

    # -- reports -------------------------------------------------------------------------------

    def submit(self, job: Job, progress: Progress = NO_PROGRESS) -> None:
        """Add a job to the queue. Submitted again while it waits, it replaces its earlier request."""
        if job.id in self.running:
            return
        known = self._queue.get(job.id)
        if known is not None:
            if known == job:
                return
            progress = self._queue.remove(job.id)
            self._offer_log.forget(job.id)
        try:
            self._queue.add(job, progress)
        except FAILURES as error:  # raised by the policy's rank
            self._fall_back(error)
            self._queue.add(job, progress)
        if not progress.attempts:  # a job that ran before was accepted then, and is not refused now
            self._unchecked.append(job)
        self._changed = True

    def withdraw(self, job_id: str) -> None:
        """Remove a waiting job that was cancelled, deleted or paused."""
        if job_id in self._queue:
            self._queue.remove(job_id)
            self._offer_log.forget(job_id)
            self._changed = True

    def started(self, job_id: str, now: float, attempt: int) -> None:
        """Record that the launch which `tick` returned has been carried out."""
        running = self.running[job_id]
        running.since = running.rated = now
        running.attempt = attempt
        running.rate = self._network_rate(running.job, running.devices)
        self._rerank(running)

    def set_rate(self, job_id: str, now: float, rate: float, pause_s: float = 0.0) -> None:
        """Set the rate at which a running job works from now on, after a pause without any work."""
        running = self.running[job_id]
        running.worked_s = running.work(now) - running.before.work_s
        running.rate, running.rated = rate, now + pause_s
        self._rerank(running)

    def expect(self, job_id: str, now: float, remaining_s: float) -> None:
        """Set how long a running job will still take, as its progress shows."""
        running = self.running.get(job_id)
        if running:
            running.job = running.job.expecting(running.work(now) + remaining_s * running.rate)
            self._rerank(running)
            self._changed = True

    def ended(self, job_id: str) -> None:
        """Release the devices of a job that finished, failed or could not be launched."""
        running = self.running.pop(job_id, None)
        if running:
            self._running_order.remove(job_id)
            self.cluster.release(running.job)
            self._offer_log.forget(job_id)
            self._changed = True

    def requeue(self, job_id: str, progress: Progress | None = None) -> None:
        """Release the devices of a job and let it wait again, by default with the progress that it had
        before this attempt."""
        running = self.running.get(job_id)
        if running:
            self.ended(job_id)
            self.submit(running.job, running.before if progress is None else progress)

    def correct_progress(self, job_id: str, progress: Progress) -> None:
        """Set the progress of a job that moves to other devices, once it has released the old ones. The
        plan could only estimate it."""
        running = self.running.get(job_id)
        if running:
            running.before = progress
            self._rerank(running)

    def adopt(
        self,
        job: Job,
        devices: tuple[Device, ...],
        since: float,
        attempt: int,
        before: Progress = NO_PROGRESS,
    ) -> bool:
        """Register a job that runs already, on devices that may be unhealthy or no longer declared. Return
        False if another job was given them meanwhile, or the job is known to run."""
        states = [self.cluster.track_device(device) for device in devices]
        if job.id in self.running or not all(state.has_room(job) for state in states):
            return False
        self.withdraw(job.id)
        held = tuple(state.device for state in states)
        self.cluster.allocate(job, held)
        rate = self._network_rate(job, held)
        running = Running(job, held, since, attempt, self.policy.name, before, rate, rated=since)
        self.running[job.id] = running
        self._rerank(running)
        return True

    def _network_rate(self, job: Job, devices: tuple[Device, ...]) -> float:
        """Return how much of its work a job does in a second, if the network alone slows it down."""
        return 1 / self._state.network(job, self.cluster.shape(devices))

    def swap(self, policy: Policy) -> None:
        """Let another policy decide from now on. Running jobs go on."""
        self.policy, self.policy_error = policy, ""
        try:
            self._order_by(policy)
        except FAILURES as error:
            self._fall_back(error)
        self._changed = True

    def set_slowdown(self, slowdown: Slowdown) -> None:
        """Set how much jobs on one device slow each other down, as far as it is known from now on."""
        self._state.slowdown = slowdown
        self._changed = True

    def set_network(self, network: NetworkSlowdown) -> None:
        """Set how much the network slows jobs down, as far as it is known from now on."""
        self._state.network = network
        self._changed = True

    def set_protection(self, protection: Protection) -> None:
        """Set which jobs are protected from preemption from now on."""
        self.protection = protection
        self._changed = True

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Replace the nodes. A job that was accepted and fits nowhere any more waits: a mistake in the
        declaration must not cost it its place in the queue."""
        self.cluster.set_nodes(nodes)
        self._changed = True

    def set_node(self, name: str, up: bool, detail: str = "") -> None:
        self.cluster.mark_node(name, up, detail)
        self._changed = True

    def set_health(self, device_id: str, healthy: bool, detail: str = "") -> bool:
        """Record a device's health. Return whether it changed."""
        changed = self.cluster.mark_device(device_id, healthy, detail)
        self._changed |= changed
        return changed

    def set_utilization(self, utilization: Mapping[str, float]) -> None:
        """Record the measured utilization of devices, in percent."""
        for device_id, percent in utilization.items():
            state = self.cluster.devices.get(device_id)
            if state is not None and state.utilization != percent:
                state.utilization = percent
                self._changed |= self.active_policy.uses_utilization

    # -- decisions ----------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """Return the actions to carry out now. If nothing changed since the last call this costs nothing."""
        self.offers = ()
        if not self._changed and (self.wake_at is None or now < self.wake_at):
            return []
        self._changed, self.wake_at = False, None
        actions = self._check_new(now) if self._unchecked else []
        if len(self._queue) or self.active_policy.moves_running:
            plan = self.make_plan(now)
            actions += [*plan.preempts, *plan.starts]
        return actions

    def make_plan(self, now: float) -> Plan:
        """Let the policy plan, whether anything changed or not. New jobs are not checked."""
        plan = self._plan(now)
        self.wake_at = self._next_wake(now, plan.wake_at)
        self.offers = self._offer_log.add(plan.offers, now) if plan.offers else ()
        for start in plan.starts:
            self._offer_log.forget(start.job.id)
        return plan

    def rehearse(self, now: float) -> Plan:
        """Return the plan that the policy would make now. Its moves are undone, and nothing has changed but
        what the policy keeps in mind."""
        order = list(self.running)
        plan = self.make_plan(now)
        self._draft.rollback()
        if list(self.running) != order:  # a job that was preempted came back as the last one
            restored = {job_id: self.running[job_id] for job_id in order}
            self.running.clear()
            self.running.update(restored)
        return plan

    def plan_again(self) -> None:
        """Let the next `tick` plan even if nothing else changes."""
        self._changed = True

    @property
    def active_policy(self) -> Policy:
        """The policy that decides: the chosen one, or FIFO while that one has an error."""
        return self._fallback if self.policy_error else self.policy

    @property
    def waiting(self) -> list[Job]:
        """The waiting jobs in arrival order. Callers must not change the list."""
        return self._queue.by_arrival

    @property
    def waiting_count(self) -> int:
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether no job waits and none runs."""
        return not self.running and not len(self._queue)

    def is_waiting(self, job_id: str) -> bool:
        return job_id in self._queue

    def progress(self, job_id: str) -> Progress:
        """Return the progress of a waiting job."""
        return self._queue.progress(job_id)

    def declined(self, job_id: str) -> Declined | None:
        """Return the last offer of devices that a waiting job declined."""
        return self._offer_log.declined(job_id)

    def first_waiting(self, limit: int | None = None) -> list[Job]:
        """Return the first `limit` waiting jobs in the policy's order."""
        return self._queue.first(limit)

    def reasons(self, limit: int | None = None, now: float | None = None) -> Iterator[tuple[Job, Reason]]:
        """Iterate over the first `limit` waiting jobs in the policy's order, with why each of them waits. The
        cost depends on the limit. With `now`, the reasons say until when running jobs are protected."""

        def foresee(job: Job) -> str:
            if now is None or not (self.can_preempt and self.active_policy.preempts):
                return ""
            behind = self._running_order.behind(self._queue.rank_of(job.id), now)
            return self.protection.foresee(job, behind, now)

        def why_waiting(job: Job) -> str:
            try:
                return self.active_policy.why_waiting(job)
            except FAILURES:  # a policy that cannot explain itself must not hide why other jobs wait
                return ""

        jobs, log = self.first_waiting(limit), self._offer_log
        return explain_queue(jobs, self.cluster, foresee, why_waiting, lambda job: log.describe(job.id, now))

    def count_reasons(self) -> Counter[str]:
        """Count all waiting jobs by the codes of their reasons. This costs less than the reasons."""
        log = self._offer_log
        return count_reasons(self.waiting, self.cluster, lambda job: bool(log.describe(job.id, None)))

    def look(self, now: float) -> State:
        """Return what a policy would see now, for callers that only read it."""
        self._state.now, self._draft.protection = now, self.protection
        return self._state

    # -- internal -----------------------------------------------------------------------------

    def _check_new(self, now: float) -> list[Action]:
        """Refuse the new jobs that no node could ever hold, and start those that ask for no device: they
        need no decision of the policy."""
        actions: list[Action] = []
        unchecked, self._unchecked = self._unchecked, []
        for job in unchecked:
            if self._queue.get(job.id) is not job:
                continue
            if not self.cluster.could_hold(job) and (reason := find_refusal(job, self.cluster)):
                self._queue.remove(job.id)
                actions.append(Refuse(job, reason))
            elif not job.gpus:
                self._draft.open(now, self.active_policy.name)
                try:
                    self._draft.start(job, ())
                except FAILURES as error:  # raised by the policy's running_rank; the job is started
                    self._fall_back(error)
                actions.append(Start(job, ()))
        return actions

    def _plan(self, now: float) -> Plan:
        if not self.policy_error:
            try:
                return self._plan_by_policy(now)
            except FAILURES as error:  # an error of a policy must not stop the pool
                self._fall_back(error)
                self._draft.rollback()
        return self._plan_by(self._fallback, now)

    def _plan_by_policy(self, now: float) -> Plan:
        """Let the policy plan. If it preempts a protected job, let it plan again as if no job could be
        preempted; if it preempts all the same, let FIFO make this one plan."""
        for stopping in (True, False):
            try:
                return self._plan_by(self.policy, now, stopping)
            except ProtectedJob:
                self._draft.rollback()
        return self._plan_by(self._fallback, now)

    def _plan_by(self, policy: Policy, now: float, stopping: bool = True) -> Plan:
        draft, state = self._draft, self._state
        draft.open(now, policy.name)
        draft.protection = self.protection if stopping else None
        state.now, state.can_preempt = now, self.can_preempt and stopping
        returned: object = policy.plan(state)
        if returned is not None:
            raise InvalidMove(
                f"plan returned {type(returned).__name__}; it must make its moves on state.draft instead"
            )
        return draft.close()

    def _next_wake(self, now: float, wake_at: float | None) -> float | None:
        """Return when to plan again: at the time that the policy asked for, or earlier if a running job
        loses its protection then and the policy may preempt it."""
        if not (self.can_preempt and self.protection.min_run_seconds and self.active_policy.preempts):
            return wake_at
        ends = (self.protection.until(running) for running in self.running.values())
        earliest = min((end for end in ends if end > now), default=math.inf)
        if wake_at is not None:
            earliest = min(earliest, wake_at)
        return earliest if earliest < math.inf else None

    def _rerank(self, running: Running) -> None:
        """Update the job's place in the running order after its rate, start or progress changed."""
        try:
            self._running_order.rerank(running)
        except FAILURES as error:  # raised by the policy's running_rank
            self._fall_back(error)

    def _fall_back(self, error: BaseException) -> None:
        """Let FIFO decide from now on, because of this error of the policy."""
        is_complete = isinstance(error, PolicyFailed)
        self.policy_error = str(error) if is_complete else f"{type(error).__name__}: {error}{_locate(error)}"
        self._order_by(self._fallback)

    def _order_by(self, policy: Policy) -> None:
        self._offer_log.clear()
        self._running_order.order_by(policy, self.running.values())
        self._queue.order_by(policy)


def _locate(error: BaseException) -> str:
    """Return the line of the policy's own file that led to the error."""
    for frame, line in walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") not in _CORE:
            return f" ({Path(frame.f_code.co_filename).name}, line {line})"
    return ""
