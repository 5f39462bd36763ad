"""Moves tried on the real state, each checked as it is made, and taken back if the plan is not kept.

A policy starts and preempts on its draft and sees every later question answered accordingly. When
it is done the moves already stand; there is no second bookkeeping to go through.
"""

from __future__ import annotations

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Plan, Preempt, Progress, Running, Start
from gpu_flows.schedulers.protection import UNPROTECTED, Protection
from gpu_flows.schedulers.running_order import RunningOrder
from gpu_flows.schedulers.waiting_queue import WaitingQueue


class BadMove(ValueError):
    """A policy tried what must not be."""


class Protected(BadMove):
    """A policy tried to stop a job that must not be stopped now. It may have meant well."""


class Draft:
    def __init__(
        self,
        cluster: Cluster,
        queue: WaitingQueue,
        running: dict[str, Running],
        running_order: RunningOrder,
        can_preempt: bool,
    ) -> None:
        self._can_preempt = can_preempt
        self.protection: Protection | None = UNPROTECTED  # None: nobody may be stopped in this plan
        self._cluster, self._queue, self._running, self._running_order = (
            cluster,
            queue,
            running,
            running_order,
        )
        self._moves: list[tuple[Running, Progress | None]] = []  # a start; with a progress, a preemption
        self.answer: Plan | None = None  # what `plan` last made of the moves
        self._preempted = False
        self._taken: dict[str, tuple[Device, ...]] = {}  # from whom, in this plan
        self._fresh: set[str] = set()  # whom this plan started
        self.begin(0.0, "")

    def begin(self, now: float, policy: str) -> None:
        """A new plan: what was moved until now stays."""
        self.now, self._policy = now, policy
        self._moves.clear()
        self._taken.clear()
        self._fresh.clear()
        self.answer, self._preempted = None, False

    def start(self, job: Job, devices: tuple[Device, ...]) -> None:
        """Give the job these devices."""
        if self._queue.get(job.id) is not job:
            raise BadMove(f"job {job.id} is not waiting")
        objection = self._cluster.allocation_error(job, devices)
        if objection:
            raise BadMove(objection)
        before = self._queue.remove(job.id)
        self._cluster.allocate(job, devices)
        now = self.now
        running = Running(job, devices, now, before.attempts + 1, self._policy, before, 1.0, now)
        self._running[job.id] = running
        self._moves.append((running, None))
        self._fresh.add(job.id)
        self._running_order.add(running)  # asks the policy, and may fail: then the move can be undone

    def may_preempt(self, running: Running) -> bool:
        """Whether the job's devices may be taken away. Who was started by this very plan never ran."""
        if running.job.id in self._fresh:
            return True
        return self.protection is not None and self.protection.until(running) <= self.now

    def preempt(self, job_id: str) -> None:
        """Take the job's devices away; it waits again, with what it has behind it."""
        running = self._running.get(job_id)
        if running is None:
            raise BadMove(f"job {job_id} is not running")
        if not self._can_preempt:
            raise BadMove(f"job {job_id} cannot be preempted here")
        if not self.may_preempt(running):
            raise Protected(f"job {job_id} is protected from being preempted")
        progress = running.before if job_id in self._fresh else running.progress(self.now)
        self._queue.add(running.job, progress)  # asks the policy, and may fail: then nothing has happened
        del self._running[job_id]
        self._running_order.remove(job_id)
        self._cluster.release(running.job)
        self._fresh.discard(job_id)
        self._moves.append((running, progress))
        self._preempted = True
        self._taken.setdefault(job_id, running.devices)

    def previous(self, job_id: str) -> tuple[Device, ...]:
        """The devices this plan took from the job; empty if it took none."""
        return self._taken.get(job_id, ())

    @property
    def mark(self) -> int:
        """How many moves were made so far: what `undo` may go back to."""
        return len(self._moves)

    def undo(self, mark: int = 0) -> None:
        """Take back every move made after the mark, the last one first."""
        while len(self._moves) > mark:
            running, progress = self._moves[-1]
            job = running.job
            if progress is None:
                self._queue.add(job, running.before)
                del self._running[job.id]
                self._running_order.remove(job.id)
                self._cluster.release(job)
                self._fresh.discard(job.id)
                self._moves.pop()
            else:
                self._queue.remove(job.id)
                self._cluster.allocate(job, running.devices)
                self._running[job.id] = running
                self._moves.pop()
                self._running_order.add(running)

    def plan(self, wake_at: float | None = None) -> Plan:
        """What all moves come to. A job stopped and started again on the same devices never stopped."""
        if not self._preempted:
            starts = tuple([Start(running.job, running.devices) for running, _ in self._moves])
            self.answer = Plan(starts, (), wake_at)
            return self.answer
        stopped: dict[str, Running] = {}
        started: dict[str, Running] = {}
        for running, progress in self._moves:
            job_id = running.job.id
            if progress is None:
                started[job_id] = running
            elif job_id in started:
                del started[job_id]
            else:
                stopped[job_id] = running
        for job_id in list(stopped):
            again = started.get(job_id)
            if again and set(again.devices) == set(stopped[job_id].devices):
                self._running[job_id] = stopped.pop(job_id)
                self._running_order.remove(job_id)
                self._running_order.add(self._running[job_id])
                del started[job_id]
        for job_id, running in stopped.items():
            if job_id not in started:
                self._queue.note_preemptions(job_id, running.before.preemptions + 1)
        self.answer = Plan(
            tuple(Start(each.job, each.devices) for each in started.values()),
            tuple(Preempt(each) for each in stopped.values()),
            wake_at,
        )
        return self.answer
