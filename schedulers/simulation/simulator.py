"""The simulator: the live engine and policies, driven by a heap of events instead of a clock.

    arrivals, ends, breakdowns, wake-ups --> engine.tick --> starts, preemptions, refusals
              ^                                                      |
              +----------- conditions: when does the job end? -------+

The engine receives all events of one moment before it plans: first ends, then breakdowns and
repairs, then arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from gpu_flows.schedulers import mirror
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import (
    Job,
    Node,
    Preempt,
    Reason,
    Refuse,
    Running,
    Start,
)
from gpu_flows.schedulers.network.shape import no_slowdown
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.simulation.conditions import Breakdown, Conditions
from gpu_flows.schedulers.simulation.estimates import Estimates, Oracle
from gpu_flows.schedulers.simulation.links import Crossing, Links
from gpu_flows.schedulers.simulation.outcome import Attempt, JobResult, Simulation, Swap
from gpu_flows.schedulers.simulation.true_memory import TrueMemory
from gpu_flows.schedulers.workload import Arrival

__all__ = ["Attempt", "JobResult", "Run", "Simulation", "Swap", "simulate"]

PROGRESS_CHECK_EVERY = 5_000  # events in a row without an arrival or an end


def simulate(
    arrivals: Iterable[Arrival],
    nodes: Sequence[Node],
    policy: Policy,
    conditions: Conditions | None = None,
    estimates: Estimates | None = None,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Run the workload under the policy. `progress` is called now and then with the number of jobs that
    have ended."""
    run = Run(arrivals, nodes, policy, conditions, estimates, progress)
    for _ in run.events():
        pass
    return run.simulation


class Run:
    """A simulation that proceeds event by event, for callers that look at it or decide in between.

    It begins with an idle cluster; or with the state that an empty engine has after the changes `begin`. The
    jobs that wait or run then must be among the arrivals, which tell how long they take in all."""

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        nodes: Sequence[Node],
        policy: Policy,
        conditions: Conditions | None = None,
        estimates: Estimates | None = None,
        progress: Callable[[int], None] | None = None,
        begin: mirror.Changes | None = None,
    ) -> None:
        conditions, estimates = conditions or Conditions(), estimates or Oracle()
        self._arrivals = sorted(arrivals, key=lambda arrival: (arrival.enters, arrival.job.order))
        self._conditions, self._estimates, self._progress = conditions, estimates, progress
        self._keeps_durations = conditions.keep_durations and not any(
            each.launch_s for each in self._arrivals
        )
        network = conditions.network
        self.engine = Engine(
            nodes,
            policy,
            can_preempt=True,
            speed=conditions.profile.speed,
            slowdown=conditions.expected_slowdown,
            network=network.slowdown if network else no_slowdown,
        )
        self._links = Links(self.engine.cluster, network) if network else None
        self._results = {arrival.job.id: JobResult(arrival) for arrival in self._arrivals}
        if len(self._results) != len(self._arrivals):
            raise ValueError("The workload has two jobs with the same id. Every job needs an id of its own.")
        self.simulation = Simulation(policy.name, nodes, list(self._results.values()))
        self.simulation.network = network.name if network else ""
        self._ends: list[tuple[float, int, str, Running]] = []
        self._due: dict[str, float] = {}  # job id -> when it ends at its present rate
        self._pushed = 0
        self.ended = 0  # jobs
        self._memory = TrueMemory(self._arrivals)
        self._dying: set[str] = set()  # running jobs that exceed the memory of a device
        self._unsaved: set[str] = set()  # jobs whose last attempt ended with a breakdown
        self._furthest: dict[str, float] = {}  # the most work a job had done at any progress check
        self._calls: list[tuple[float, int, Callable[[float], None]]] = []
        self._note_policy(self._arrivals[0].enters if self._arrivals else 0.0, policy)
        self._begin = begin
        if begin:
            self._take_over(begin)

    def result(self, job_id: str) -> JobResult:
        """Return what has happened to a job so far."""
        return self._results[job_id]

    # -- what happens to the pool from outside ------------------------------------------------

    def at(self, time: float, call: Callable[[float], None]) -> None:
        """Call this at that time, before the policy plans. Calls of one moment keep their order."""
        self._pushed += 1
        heappush(self._calls, (time, self._pushed, call))

    def swap(self, policy: Policy, now: float) -> None:
        """Let another policy decide from now on."""
        self.engine.swap(policy)
        self._note_policy(now, policy)

    def cancel(self, job_id: str, now: float) -> None:
        """End a job that has not ended, wherever it is."""
        result, running = self._results[job_id], self.engine.running.get(job_id)
        if result.ended is not None:
            return
        result.reason = Reason("cancelled", "It was cancelled.")
        self.engine.withdraw(job_id)
        if running:
            self.engine.ended(job_id)
            self._close_attempt(running, now, "cancelled")
        self._count_ended()

    def _note_policy(self, now: float, policy: Policy) -> None:
        self.simulation.swaps.append(Swap(now, policy.name, policy.options.model_dump(mode="json")))

    # -- the course of events -----------------------------------------------------------------

    def events(self) -> Iterator[float]:
        """Handle one moment with events after the other, and yield its time. The simulation is complete
        after the last one."""
        engine, arrivals, ends, calls = self.engine, self._arrivals, self._ends, self._calls
        breakdowns = self._conditions.breakdowns(self.simulation.nodes)
        next_arrival, quiet, ended, endless = 0, 0, 0, False
        if self._begin:
            self.plan(self._begin.now)
            yield self._begin.now
        while True:
            arrival_at = arrivals[next_arrival].enters if next_arrival < len(arrivals) else math.inf
            now = min(arrival_at, self._next_end())
            if engine.wake_at is not None:
                now = min(now, engine.wake_at)
            if calls:
                now = min(now, calls[0][0])
            if breakdowns and (next_arrival < len(arrivals) or not engine.is_idle):
                now = min(now, breakdowns.next_at)
            if now == math.inf:
                break
            while ends and ends[0][0] == now:
                self._end(*heappop(ends))
            while calls and calls[0][0] <= now:
                heappop(calls)[2](now)
            if breakdowns and breakdowns.next_at <= now:
                self._apply_breakdown(now, breakdowns.pop())
            while next_arrival < len(arrivals) and arrivals[next_arrival].enters == now:
                self._submit(arrivals[next_arrival])
                next_arrival += 1
            self.plan(now)
            yield now
            quiet = quiet + 1 if next_arrival == len(arrivals) and self.ended == ended else 0
            ended = self.ended
            endless = quiet > 0 and quiet % PROGRESS_CHECK_EVERY == 0 and not self._has_progress(now)
            if endless:
                break
        self._report_unfinished(endless)
        self.simulation.policy_error = engine.policy_error

    def plan(self, now: float) -> None:
        """Let the policy plan, if anything changed, and carry the plan out."""
        engine = self.engine
        actions = engine.tick(now)
        self.simulation.decisions += 1
        if engine.offers:
            self.simulation.offers.extend((now, offer) for offer in engine.offers)
        for action in actions:
            if isinstance(action, Start):
                self._start(action, now)
            elif isinstance(action, Preempt):
                self._preempt(action, now)
            else:
                self._refuse(action)

    # -- events -------------------------------------------------------------------------------

    def _take_over(self, begin: mirror.Changes) -> None:
        """Continue with the jobs that wait and run already."""
        mirror.apply(begin, self.engine)
        for job, progress in begin.waiting:
            result = self._results[job.id]
            result.attempts, result.ran_s = progress.attempts, progress.ran_s
        for running in self.engine.running.values():
            result = self._results[running.job.id]
            result.attempts, result.ran_s = running.attempt, running.before.ran_s
            result.started, result.devices = running.since, running.devices
        if self._links:
            for running in self.engine.running.values():
                self._links.add(running, begin.now, 0.0)
        for running in self.engine.running.values():
            if not self._keeps_durations:
                self.engine.set_rate(running.job.id, begin.now, self._rate(running))
            self._expect_end(running)
        known = {job.id for job, _ in begin.waiting} | self.engine.running.keys()
        self._arrivals = [arrival for arrival in self._arrivals if arrival.job.id not in known]

    def _submit(self, arrival: Arrival) -> None:
        result = self._results[arrival.job.id]
        if result.reason is None:  # it was not cancelled before
            result.told = self._estimates.job_for_policy(arrival)
            self.engine.submit(result.told)

    def _preempt(self, stop: Preempt, now: float) -> None:
        self._close_attempt(stop.running, now, "preempted")

    def _start(self, start: Start, now: float) -> None:
        job = start.job
        running = self.engine.running[job.id]
        result = self._results[job.id]
        before, result.devices = result.devices, start.devices
        has_run = result.attempts > 0
        result.attempts += 1
        if result.started is None:
            result.started = now
        conditions = self._conditions
        if not self._keeps_durations or len(start.devices) != job.gpus:
            pause = self._launch_s(job.id)
            if has_run:
                restart_s = conditions.pause_s(before, start.devices, job.id not in self._unsaved)
                pause += self._pay(job.id, restart_s)
            self._unsaved.discard(job.id)
            crossings = self._links.add(running, now, pause) if self._links else []
            self.engine.set_rate(job.id, now, self._rate(running), pause)
            self._update_rates(running, now, crossings)
        if self._memory.matters and self._memory.find_overfull(running, self.engine.cluster):
            self._dying.add(job.id)
        self._expect_end(running)

    def _launch_s(self, job_id: str) -> float:
        """Return how long an attempt pauses before it runs."""
        return self._results[job_id].arrival.launch_s

    def _pay(self, job_id: str, seconds: float) -> float:
        """Return how much of this time is a pause, in which the engine sees the job do nothing."""
        return seconds

    def _work_s(self, job_id: str) -> float:
        """Return how much the job has to do."""
        return self._results[job_id].arrival.duration_s

    def _expect_end(self, running: Running) -> None:
        job_id = running.job.id
        work = self._work_s(job_id)
        if self._dying and job_id in self._dying:
            work *= self._conditions.oom_after
        left = work - running.before.work_s - running.worked_s
        end = running.rated + max(0.0, left) / running.rate if running.rate else math.inf
        self._due[job_id] = end
        if end < math.inf:
            self._pushed += 1
            heappush(self._ends, (end, self._pushed, job_id, running))

    def _next_end(self) -> float:
        """Return when the next job ends. Drop outdated entries of the heap on the way."""
        ends, running = self._ends, self.engine.running
        while ends:
            end, _, job_id, entry = ends[0]
            if running.get(job_id) is entry and self._due[job_id] == end:
                return end
            heappop(ends)
        return math.inf

    def _end(self, now: float, _: int, job_id: str, running: Running) -> None:
        if self.engine.running.get(job_id) is not running or self._due[job_id] != now:
            return
        if self._dying and job_id in self._dying:
            return self._run_out_of_memory(running, now)
        self._release(running, now)
        result = self._results[job_id]
        result.ended = now
        self._close_attempt(running, now, "completed")
        self._estimates.learn(result.arrival)
        self._count_ended()

    def _release(self, running: Running, now: float) -> None:
        """Free the devices of a job that has ended."""
        self.engine.ended(running.job.id)

    def _count_ended(self) -> None:
        self.ended += 1
        if self._progress and self.ended % 256 == 0:
            self._progress(self.ended)

    def _run_out_of_memory(self, running: Running, now: float) -> None:
        """Let the job wait again with a raised bound, or fail; or go on, if others have made room."""
        job, engine = running.job, self.engine
        device = self._memory.find_overfull(running, engine.cluster)
        if device is None:
            self._dying.discard(job.id)
            return self._expect_end(running)
        raised = self._memory.raise_bound(running, device, engine.cluster)
        self.simulation.ooms += 1
        engine.ended(job.id)
        if isinstance(raised, Job):
            engine.submit(raised, replace(running.progress(now), work_s=running.before.work_s))
        else:
            self._results[job.id].reason = raised
            self._count_ended()
        self._close_attempt(running, now, "oom")

    def _close_attempt(self, running: Running, now: float, outcome: str) -> None:
        job_id = running.job.id
        self._dying.discard(job_id)
        result = self._results[job_id]
        result.ran_s += now - running.since
        if outcome == "preempted":
            # By now the engine has put the job back in the queue or started it on other devices.
            has_moved = job_id in self.engine.running
            self.simulation.moves += has_moved
            self.simulation.preemptions += not has_moved
            outcome = "moved" if has_moved else outcome
        attempt = Attempt(job_id, running.attempt, running.since, now, running.devices, outcome)
        if len(running.devices) > 1:
            attempt.tier = self.engine.cluster.tier(running.devices)
        self.simulation.attempts.append(attempt)
        crossings: list[Crossing] = []
        if self._links:
            attempt.comm_s = self._links.lost_s(running, now)
            result.comm_s += attempt.comm_s
            crossings = self._links.remove(running, now)
        if not self._keeps_durations:
            self._update_rates(running, now, crossings)

    def _refuse(self, refusal: Refuse) -> None:
        self._results[refusal.job.id].reason = refusal.reason

    def _apply_breakdown(self, now: float, breakdown: Breakdown) -> None:
        """Take a node or device down, with the jobs on it, or bring it back up."""
        engine = self.engine
        if breakdown.device:
            engine.set_health(
                breakdown.device, breakdown.repaired, "" if breakdown.repaired else "it broke down"
            )
        else:
            engine.set_node(breakdown.node, breakdown.repaired, "" if breakdown.repaired else "it broke down")
        if breakdown.repaired:
            return
        for running in list(engine.running.values()):
            if any(breakdown.hits(device) for device in running.devices):
                self.simulation.losses += 1
                self._unsaved.add(running.job.id)
                progress = self._conditions.progress_after_breakdown(running, now)
                engine.requeue(running.job.id, progress)
                self._close_attempt(running, now, "lost")

    def _rate(self, running: Running) -> float:
        slowdown = self._links.slowdown(running) if self._links else 1.0
        return self._conditions.rate(running.job, running.devices, self.engine, slowdown)

    def _update_rates(self, running: Running, now: float, crossings: Sequence[Crossing]) -> None:
        """Update the rates of the jobs that share a device with this job, and of those that the network now
        slows down more or less because of it."""
        engine = self.engine
        affected = {
            holder
            for device in running.devices
            for holder in engine.cluster.devices[device.id].holders
            if holder != running.job.id
        }
        # a job that this plan has stopped as well is still among the crossings
        affected.update(
            crossing.running.job.id
            for crossing in crossings
            if engine.running.get(crossing.running.job.id) is crossing.running
        )
        for job_id in sorted(affected):
            other = engine.running[job_id]
            rate = self._rate(other)
            if rate != other.rate:
                engine.set_rate(job_id, now, rate, max(0.0, other.rated - now))
                self._expect_end(other)

    def _report_unfinished(self, endless: bool) -> None:
        """Set the reason of every job that did not end."""
        never = Reason(
            "endless", "It would never end: no running job makes progress, or breakdowns undo all of it."
        )
        for job, reason in self.engine.reasons():
            self._results[job.id].reason = never if endless else reason
        for job_id in self.engine.running:
            self._results[job_id].reason = never

    def _has_progress(self, now: float) -> bool:
        """Whether any running job has done more work than at any earlier check."""
        further = False
        for job_id, running in self.engine.running.items():
            done = running.work(now)
            if done > self._furthest.get(job_id, 0.0):
                self._furthest[job_id], further = done, True
        return further
