"""The engine: every waiting job, every running job, every device, and the only one who allocates.

Two drivers feed it, a live one with the real clock and a simulated one with a heap. They tell it
what happened (submit, started, ended ...) and then call `tick`, which lets the policy plan once
for all of it and returns the actions to carry out. Every move of a plan is checked as it is made;
a policy that tries nonsense is put aside, its plan taken back whole, and FIFO serves until it is
swapped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.draft import BadMove, Draft, Protected
from gpu_flows.schedulers.model import (
    NO_PROGRESS,
    Device,
    Job,
    Node,
    Plan,
    Preempt,
    Progress,
    Reason,
    Running,
    Start,
)
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import Policy, Speed, State, linear
from gpu_flows.schedulers.protection import UNPROTECTED, Protection
from gpu_flows.schedulers.reasons import Outlook, impossible
from gpu_flows.schedulers.running_order import RunningOrder
from gpu_flows.schedulers.waiting_queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the job's owner that it can never run here, and why."""

    job: Job
    reason: Reason


Action = Start | Preempt | Refuse


class Engine:
    def __init__(
        self,
        nodes: Iterable[Node],
        policy: Policy,
        can_preempt: bool = False,
        speed: Speed = linear,
        protection: Protection = UNPROTECTED,
    ) -> None:
        self.cluster = Cluster(nodes)
        self.policy = policy
        self.can_preempt, self.protection = can_preempt, protection
        self.policy_error = ""  # why the policy was put aside, until it is swapped
        self.running: dict[str, Running] = {}
        self.wake_at: float | None = None
        self._fallback: Policy = Fifo()
        self._queue = WaitingQueue(policy.rank, policy.group)
        self._running_order = RunningOrder(policy.running_rank)
        self._draft = Draft(self.cluster, self._queue, self.running, self._running_order, can_preempt)
        self._state = State(
            0.0, self._queue, self.running, self._running_order, self.cluster, self._draft, can_preempt, speed
        )
        self._unchecked: list[Job] = []  # not yet asked whether the cluster could ever hold them
        self._changed = True

    # -- what happened ------------------------------------------------------------------------

    def submit(self, job: Job, progress: Progress = NO_PROGRESS) -> None:
        """A job wants to run. The same job again replaces what it asked for while it waits."""
        if job.id in self.running:
            return
        known = self._queue.get(job.id)
        if known is not None:
            if known == job:
                return
            progress = self._queue.remove(job.id)
        try:
            self._queue.add(job, progress)
        except Exception as error:  # the policy's idea of an order
            self._put_aside(error)
            self._queue.add(job, progress)
        if not progress.attempts:  # one that ran before was accepted, and must not be refused for coming back
            self._unchecked.append(job)
        self._changed = True

    def withdraw(self, job_id: str) -> None:
        """A waiting job is gone: cancelled, deleted or paused."""
        if job_id in self._queue:
            self._queue.remove(job_id)
            self._changed = True

    def started(self, job_id: str, now: float, attempt: int) -> None:
        """The launch that `tick` asked for has been carried out."""
        running = self.running[job_id]
        running.since = running.rated = now
        running.attempt = attempt
        self._stand(running)

    def set_rate(self, job_id: str, now: float, rate: float, pause_s: float = 0.0) -> None:
        """A running job works at this rate from now on, after a pause in which it gets nothing done."""
        running = self.running[job_id]
        running.worked_s = running.work(now) - running.before.work_s
        running.rate, running.rated = rate, now + pause_s
        self._stand(running)

    def ended(self, job_id: str) -> None:
        """A job let go of its devices: finished, failed, or never came to run."""
        running = self.running.pop(job_id, None)
        if running:
            self._running_order.remove(job_id)
            self.cluster.give_back(running.job)
            self._changed = True

    def requeue(self, job_id: str, progress: Progress | None = None) -> None:
        """A job lost its devices but still wants to run, with this much of it done; if nothing is
        said, with what it had before."""
        running = self.running.get(job_id)
        if running:
            self.ended(job_id)
            self.submit(running.job, running.before if progress is None else progress)

    def correct_progress(self, job_id: str, progress: Progress) -> None:
        """A job that moves to other devices has let go of those it had, with this much of it done. What
        the plan took for it was a forecast."""
        running = self.running.get(job_id)
        if running:
            running.before = progress
            self._stand(running)

    def adopt(
        self,
        job: Job,
        devices: tuple[Device, ...],
        since: float,
        attempt: int,
        before: Progress = NO_PROGRESS,
    ) -> bool:
        """A job is found running already, on devices that may be sick or no longer declared.
        False if another job was promised them meanwhile, or it is known to run."""
        states = [self.cluster.remember(device) for device in devices]
        if job.id in self.running or not all(state.has_room(job) for state in states):
            return False
        self.withdraw(job.id)
        held = tuple(state.device for state in states)
        self.cluster.take(job, held)
        running = Running(job, held, since, attempt, self.policy.name, before, rated=since)
        self.running[job.id] = running
        self._stand(running)
        return True

    def swap(self, policy: Policy) -> None:
        """Another policy decides from now on. It sees the whole state; nothing running is touched."""
        self.policy, self.policy_error = policy, ""
        try:
            self._serve_by(policy)
        except Exception as error:
            self._put_aside(error)
        self._changed = True

    def set_protection(self, protection: Protection) -> None:
        """Jobs are protected like this from now on."""
        self.protection = protection
        self._changed = True

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Other devices from now on. A job that was accepted and fits nowhere any more waits, and says
        so: a slip in the declaration must not cost it its place."""
        self.cluster.replace(nodes)
        self._changed = True

    def set_node(self, name: str, up: bool, detail: str = "") -> None:
        self.cluster.set_node(name, up, detail)
        self._changed = True

    def set_health(self, device_id: str, healthy: bool, detail: str = "") -> bool:
        """A device turned sick or well. Whether that is news."""
        news = self.cluster.set_health(device_id, healthy, detail)
        self._changed |= news
        return news

    def set_utilization(self, utilization: Mapping[str, float]) -> None:
        """How busy devices were measured to be, in percent."""
        for device_id, percent in utilization.items():
            state = self.cluster.devices.get(device_id)
            if state is not None and state.utilization != percent:
                state.utilization = percent
                self._changed = True

    # -- what follows -------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """What to do now. Costs nothing when nothing changed since the last call."""
        if not self._changed and (self.wake_at is None or now < self.wake_at):
            return []
        self._changed, self.wake_at = False, None
        actions = self._look_at_new(now) if self._unchecked else []
        if len(self._queue) or self.active_policy.moves_running:
            plan = self._plan(now)
            self.wake_at = min(filter(None, [plan.wake_at, self._next_unprotected(now)]), default=None)
            actions += plan.preempts
            actions += plan.starts
        return actions

    @property
    def active_policy(self) -> Policy:
        """The policy that really decides: the chosen one, or FIFO in its stead."""
        return self._fallback if self.policy_error else self.policy

    @property
    def waiting(self) -> list[Job]:
        """In arrival order. Read it, do not change it."""
        return self._queue.by_arrival

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and nobody runs."""
        return not self.running and not len(self._queue)

    def is_waiting(self, job_id: str) -> bool:
        return job_id in self._queue

    def progress(self, job_id: str) -> Progress:
        """What a waiting job has behind it."""
        return self._queue.progress(job_id)

    def reasons(self, limit: int | None = None) -> Iterator[tuple[Job, Reason]]:
        """Why each of the first `limit` jobs in the policy's order waits."""
        outlooks: dict[object, Outlook] = {}  # jobs that ask for the same share one
        for position, job in enumerate(list(self._queue)[:limit], start=1):
            if job.request not in outlooks:
                outlooks[job.request] = Outlook(job, self.cluster)
            yield job, outlooks[job.request].reason(position)

    # -- inside -------------------------------------------------------------------------------

    def _look_at_new(self, now: float) -> list[Action]:
        """Refuse what nothing could ever hold. What asks for no device needs no decision, and
        policies need not know of it."""
        actions: list[Action] = []
        unchecked, self._unchecked = self._unchecked, []
        for job in unchecked:
            if self._queue.get(job.id) is not job:
                continue
            if not self.cluster.could_hold(job) and (reason := impossible(job, self.cluster)):
                self._queue.remove(job.id)
                actions.append(Refuse(job, reason))
            elif not job.gpus:
                self._draft.begin(now, self.active_policy.name)
                self._draft.start(job, ())
                actions.append(Start(job, ()))
        return actions

    def _plan(self, now: float) -> Plan:
        if not self.policy_error:
            try:
                return self._ask_kindly(self.policy, now)
            except Exception as error:  # whatever a policy does wrong, the pool goes on
                self._put_aside(error)
                self._draft.undo()
        return self._ask(self._fallback, now)

    def _ask_kindly(self, policy: Policy, now: float) -> Plan:
        """A policy that would stop a protected job is asked again, as if nobody could be stopped. If it
        does not even look at that, FIFO makes this one plan in its stead."""
        try:
            return self._ask(policy, now)
        except Protected:
            self._draft.undo()
        try:
            return self._ask(policy, now, stopping=False)
        except Protected:
            self._draft.undo()
        return self._ask(self._fallback, now)

    def _ask(self, policy: Policy, now: float, stopping: bool = True) -> Plan:
        draft, state = self._draft, self._state
        draft.begin(now, policy.name)
        draft.protection = self.protection if stopping else None
        state.now, state.can_preempt = now, self.can_preempt and stopping
        plan = policy.plan(state)
        if not isinstance(plan, Plan):
            raise BadMove(f"plan returned {type(plan).__name__}, not a Plan; did it forget to?")
        if plan is not draft.answer:  # made by hand: go through it move by move
            draft.undo()
            for stop in plan.preempts:
                draft.preempt(stop.running.job.id)
            for start in plan.starts:
                draft.start(start.job, start.devices)
            plan = draft.plan(plan.wake_at)
        if plan.wake_at is not None and plan.wake_at <= now:
            raise BadMove(f"asks at {now} to be called again at {plan.wake_at}, which is no later")
        return plan

    def _next_unprotected(self, now: float) -> float | None:
        """When the next running job loses its protection, if that may matter to anybody."""
        if not (self.can_preempt and self.protection.min_run_seconds and self.active_policy.preempts):
            return None
        ends = (self.protection.until(running) for running in self.running.values())
        return min((end for end in ends if now < end < math.inf), default=None)

    def _stand(self, running: Running) -> None:
        """Its place among the running jobs, anew."""
        try:
            self._running_order.remove(running.job.id)
            self._running_order.add(running)
        except Exception as error:  # the policy's idea of an order
            self._put_aside(error)

    def _put_aside(self, error: Exception) -> None:
        self.policy_error = f"{type(error).__name__}: {error}{_whereabouts(error)}"
        self._serve_by(self._fallback)

    def _serve_by(self, policy: Policy) -> None:
        self._running_order.rank_by(policy.running_rank, self.running.values())
        self._queue.rank_by(policy.rank, policy.group)


def _whereabouts(error: Exception) -> str:
    """The line in the policy's own file that led to the error, for whoever wrote it."""
    for frame, line in walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") != __name__:
            return f" ({Path(frame.f_code.co_filename).name}, line {line})"
    return ""
