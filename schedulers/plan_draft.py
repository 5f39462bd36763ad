"""The plan under construction: moves on the real state, each checked as it is made.

A policy starts and preempts jobs on its draft, and everything it reads afterwards includes these moves.
A move that is not allowed raises at the line that tries it. Moves can be rolled back, so a policy may try
something, and the engine can discard the plan of a policy that fails.
"""

from __future__ import annotations

import math

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Offer, Plan, Preempt, Progress, Running, Start, Tier
from gpu_flows.schedulers.protection import UNPROTECTED, Protection
from gpu_flows.schedulers.running_order import RunningOrder
from gpu_flows.schedulers.waiting_queue import WaitingQueue


class InvalidMove(ValueError):
    """A policy tried a move that is not allowed."""


class ProtectedJob(InvalidMove):
    """A policy tried to preempt a job that is protected now."""


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
        self.protection: Protection | None = UNPROTECTED  # None: no job may be preempted in this plan
        self._cluster, self._queue = cluster, queue
        self._running, self._running_order = running, running_order
        self._moves: list[tuple[Running, Progress | None]] = []  # a start; with a progress, a preemption
        self._preempted = False
        self._taken: dict[str, tuple[Device, ...]] = {}  # job id -> the devices this plan took from it
        self._started: set[str] = set()  # the jobs that this plan started
        self._wake_at = math.inf
        self._offers: list[Offer] = []
        self.open(0.0, "")

    # -- for policies -------------------------------------------------------------------------

    def start(self, job: Job, devices: tuple[Device, ...]) -> None:
        """Give the waiting job exactly these devices."""
        if self._queue.get(job.id) is not job:
            raise InvalidMove(f"job {job.id} is not waiting")
        objection = self._cluster.allocation_error(job, devices)
        if objection:
            raise InvalidMove(objection)
        before = self._queue.remove(job.id)
        self._cluster.allocate(job, devices)
        now = self.now
        running = Running(job, devices, now, before.attempts + 1, self._policy, before, 1.0, now)
        self._running[job.id] = running
        self._moves.append((running, None))
        self._started.add(job.id)
        self._running_order.add(running)  # last, because it calls the policy: if that fails, roll back

    def may_preempt(self, running: Running) -> bool:
        """Return whether the job may be preempted now. A job that this plan started always may."""
        if running.job.id in self._started:
            return True
        return self.protection is not None and self.protection.until(running) <= self.now

    def preempt(self, job_id: str) -> None:
        """Take the running job's devices away; it waits again and keeps its progress."""
        running = self._running.get(job_id)
        if running is None:
            raise InvalidMove(f"job {job_id} is not running")
        if not self._can_preempt:
            raise InvalidMove(f"job {job_id} cannot be preempted here")
        if not self.may_preempt(running):
            raise ProtectedJob(f"job {job_id} is protected from being preempted")
        progress = running.before if job_id in self._started else running.progress(self.now)
        self._queue.add(running.job, progress)  # first, because it calls the policy, which may fail
        del self._running[job_id]
        self._running_order.remove(job_id)
        self._cluster.release(running.job)
        self._started.discard(job_id)
        self._moves.append((running, progress))
        self._preempted = True
        self._taken.setdefault(job_id, running.devices)

    def taken_from(self, job_id: str) -> tuple[Device, ...]:
        """Return the devices that the job held when this plan preempted it; none if it did not."""
        return self._taken.get(job_id, ())

    def rerank(self, job_id: str) -> None:
        """Ask the policy for the job's rank again, waiting or running. If `rank` or `running_rank`
        raises, the job keeps its old rank."""
        running = self._running.get(job_id)
        if running is not None:
            self._running_order.rerank(running)
        elif job_id in self._queue:
            self._queue.rerank(job_id)
        else:
            raise InvalidMove(f"job {job_id} neither waits nor runs")

    def rerank_all(self) -> None:
        """Ask the policy for the ranks of all waiting and running jobs again."""
        self._queue.rerank_all()
        self._running_order.rerank_all(self._running.values())

    def wake_at(self, time: float) -> None:
        """Ask for a plan at this time at the latest. The earliest of several times counts; infinity asks
        for nothing."""
        if time <= self.now:
            raise InvalidMove(f"wake_at({time}) is not later than now ({self.now})")
        self._wake_at = min(self._wake_at, time)

    def note(self, offer: Offer) -> None:
        """Record that a job took or declined devices, for the history and for `why`. It is no move."""
        if offer.job.id not in self._queue and offer.job.id not in self._started:
            raise InvalidMove(f"an offer to job {offer.job.id}, which neither waits nor starts in this plan")
        if fault := _find_fault(offer):
            raise InvalidMove(f"the offer to job {offer.job.id}: {fault}")
        self._offers.append(offer)

    def checkpoint(self) -> int:
        """Return a mark of the moves made so far, to which `rollback` can return."""
        return len(self._moves)

    def rollback(self, checkpoint: int = 0) -> None:
        """Undo every move made since the checkpoint, the last one first. An offer whose start is undone was
        not accepted, and is dropped."""
        undone: set[str] = set()
        while len(self._moves) > checkpoint:
            running, progress = self._moves[-1]
            job = running.job
            if progress is None:
                self._queue.add(job, running.before)
                del self._running[job.id]
                self._running_order.remove(job.id)
                self._cluster.release(job)
                self._started.discard(job.id)
                self._moves.pop()
                undone.add(job.id)
            else:
                self._queue.remove(job.id)
                self._cluster.allocate(job, running.devices)
                self._running[job.id] = running
                self._moves.pop()
                self._running_order.add(running)
        if self._offers:
            self._offers = [each for each in self._offers if not (each.accepted and each.job.id in undone)]

    # -- for the engine -----------------------------------------------------------------------

    def open(self, now: float, policy: str) -> None:
        """Begin a new plan. The moves of the last one stay."""
        self.now, self._policy = now, policy
        self._moves.clear()
        self._taken.clear()
        self._started.clear()
        self._offers.clear()
        self._preempted, self._wake_at = False, math.inf

    def close(self) -> Plan:
        """Return the plan that all moves amount to."""
        wake_at = self._wake_at if self._wake_at < math.inf else None
        if not self._preempted:
            return Plan(
                tuple([Start(running.job, running.devices) for running, _ in self._moves]),
                (),
                wake_at,
                tuple(self._offers),
            )
        stopped, started = self._net_moves()
        self._keep_unmoved(stopped, started)
        for job_id, running in stopped.items():
            if job_id not in started:
                self._queue.set_preemptions(job_id, running.before.preemptions + 1)
        return Plan(
            tuple(Start(running.job, running.devices) for running in started.values()),
            tuple(Preempt(running) for running in stopped.values()),
            wake_at,
            tuple(self._offers),
        )

    def _net_moves(self) -> tuple[dict[str, Running], dict[str, Running]]:
        """Return the jobs that ran before the plan and were stopped, and those that it leaves started."""
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
        return stopped, started

    def _keep_unmoved(self, stopped: dict[str, Running], started: dict[str, Running]) -> None:
        """Drop both moves of a job that was stopped and started again on the same devices, and its offers."""
        for job_id in list(stopped):
            again = started.get(job_id)
            if again and set(again.devices) == set(stopped[job_id].devices):
                self._running[job_id] = stopped.pop(job_id)
                self._running_order.rerank(self._running[job_id])
                del started[job_id]
                self._offers = [offer for offer in self._offers if offer.job.id != job_id]


def _find_fault(offer: Offer) -> str:
    """Return which field of the offer could not be recorded or shown; empty if all can be."""
    tier: object = offer.tier
    accepted: object = offer.accepted
    if not isinstance(tier, Tier):
        return f"tier is {tier!r} and not a Tier"
    if not isinstance(accepted, bool):
        return f"accepted is {accepted!r} and not True or False"
    figures = offer.waited_s, offer.slowdown, offer.sensitivity
    if not all(isinstance(figure, (int, float)) and math.isfinite(figure) for figure in figures):
        return "waited_s, slowdown and sensitivity must be finite numbers"
    if not isinstance(offer.patience_s, (int, float)) or math.isnan(offer.patience_s):
        return f"patience_s is {offer.patience_s!r} and not a number; infinity means for ever"
    return ""
