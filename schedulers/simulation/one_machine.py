"""Lower bounds for one machine that does at most 1 work per second.

`bounds` converts a cluster to such machines.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from math import inf

import numpy as np
from numpy.typing import NDArray

from gpu_flows.schedulers.model import Job

Floats = NDArray[np.float64]

ROUNDING = 1e-9  # each bound is reduced by this part, so that rounding never lifts it above the optimum


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A machine that does at most 1 work per second and could carry out every schedule of the cluster."""

    name: str
    jobs: list[Job]
    release: Floats
    work: Floats
    fastest: Floats  # never less than `work`, because the machine takes that long for a job alone

    def makespan(self, first: float) -> tuple[float, str]:
        """Return a bound on the makespan and an explanation.

        At time t, at most (t - release) / fastest of a job is done. The rest of all jobs is left(t), so the
        end is at t + left(t) or later, for any t at which some job cannot have ended. Between the times at
        which a job is released or could first end this is linear, so only those times are tried.
        """
        release, ends = self.release - first, self.release + self.fastest - first
        longest = int(np.argmax(ends))
        slope = np.divide(self.work, self.fastest, out=np.zeros(len(ends)), where=self.fastest > 0)
        times = np.concatenate([release, ends])
        order = np.argsort(times)
        times, slopes = times[order], np.concatenate([-slope, slope])[order].cumsum()
        left = self.work.sum() + np.concatenate([[0.0], (slopes[:-1] * np.diff(times)).cumsum()])
        best = int(np.argmax(times + left))
        end = float(times[best] + left[best]) * (1 - ROUNDING)
        if end > ends[longest]:
            return end, f"{left[best]:,.0f} s of work for {self.name} are left at second {times[best]:,.0f}"
        explanation = f"job {self.jobs[longest].id} arrives at second {release[longest]:,.0f} and runs for "
        return float(ends[longest]), explanation + f"{self.fastest[longest]:,.0f} s"

    def turnaround(self) -> tuple[float, str]:
        """Return a bound on the sum of all turnarounds and an explanation."""
        alone = float(self.fastest.sum())
        busy = self.work > 0
        release = self.release[busy] - self.release.min()
        work, fastest = self.work[busy], self.fastest[busy]
        waiting = _Fluid(release, work, fastest).total_wait() * (1 - ROUNDING)
        in_turn = alone - float(fastest.sum()) + _shortest_remaining_first(release, work) * (1 - ROUNDING)
        if in_turn > alone + waiting:
            return in_turn, f"one after the other on {self.name}, the least remaining work first"
        if waiting > alone * ROUNDING:
            return alone + waiting, f"each job's fastest time, and waiting for {self.name}"
        return alone, "each job's fastest time"


def drop_dominated(machines: list[Machine]) -> list[Machine]:
    """Drop the machines on which no job is more work than on another one: their bounds are not better."""
    kept: list[Machine] = []
    for machine in sorted(machines, key=lambda machine: -machine.work.sum()):
        if not any(np.all(machine.work <= other.work) for other in kept):
            kept.append(machine)
    return kept


def _shortest_remaining_first(release: Floats, work: Floats) -> float:
    """Return the least sum of turnarounds on one machine. Shortest remaining work first is the best order
    there (Schrage 1968)."""
    order = np.argsort(release)
    left: list[float] = []  # remaining work of the jobs that have arrived, as a heap
    now = ended = 0.0
    for arrival, job_work in zip([*release[order].tolist(), inf], [*work[order].tolist(), inf], strict=True):
        while left and now + left[0] <= arrival:
            now += heappop(left)
            ended += now
        if left:
            heapreplace(left, left[0] - (arrival - now))
        now = arrival
        heappush(left, job_work)
    return ended - float(release.sum())


class _Fluid:
    """The least total time that jobs wait on one machine, in addition to their own fastest times.

    A job makes progress at a rate of 1/fastest at most. So no part of it is done before it would be done
    at exactly this rate from its release on. The model treats its work as fluid that flows in at this rate.
    Let M be the mean time at which the work of the job is done. The work is never done faster than at this
    rate, so the job ends at M + fastest/2 or later. Both together:

        turnaround >= fastest + mean time that the fluid of the job waits

    A unit of fluid has the weight 1/work. The machine may serve any fluid that has flowed in, so the weighted
    wait is least if the heaviest fluid is always served first (otherwise exchange two units). That is the job
    with the least work; jobs are numbered in this order. The total wait is the weighted amount of waiting
    fluid, integrated over time.
    """

    def __init__(self, release: Floats, work: Floats, fastest: Floats) -> None:
        rank = np.argsort(work, kind="stable")
        self.events = np.concatenate([release[rank], release[rank] + fastest[rank]])
        self.end: list[float] = self.events[len(work) :].tolist()
        self.rate: list[float] = (work[rank] / fastest[rank]).tolist()
        self.work: list[float] = work[rank].tolist()
        self.flows = [False] * len(work)
        # For a job behind the front: since when, and how much of it waited then.
        self.parked = [(0.0, 0.0)] * len(work)
        self.none = len(work)
        self.ahead: list[int] = []  # jobs served at the rate at which they flow in; sorted
        self.front = self.none  # the job that gets the rest of the machine
        self.behind: list[int] = []  # jobs that get nothing; a heap
        self.room = 1.0  # the rate that the jobs ahead leave
        self.level = 0.0  # how much of the front waits
        self.now = self.waited = 0.0

    def total_wait(self) -> float:
        order = np.argsort(self.events, kind="stable")  # stable: a job never ends before its release
        for event, time in zip(order.tolist(), self.events[order].tolist(), strict=True):
            self._serve_until(time)
            if event < self.none:
                self._start_flow(event)
            else:
                self._stop_flow(event - self.none)
        self._serve_until(inf)
        return self.waited

    def _serve_until(self, until: float) -> None:
        while self.front < self.none and self.now < until:
            growth = self.rate[self.front] * self.flows[self.front] - self.room
            step = until - self.now
            drained = growth < 0 and self.level <= -growth * step
            if drained:
                step = self.level / -growth
            self.waited += (self.level + growth * step / 2) * step / self.work[self.front]
            self.now += step
            self.level += growth * step
            if drained:
                self._advance()
        self.now = until

    def _start_flow(self, job: int) -> None:
        self.flows[job] = True
        if job > self.front:
            self._park(job, 0.0)
            return
        insort(self.ahead, job)
        self.room -= self.rate[job]
        while self.room < 0:
            if self.front < self.none:
                self._park(self.front, self.level)
            self.front, self.level = self.ahead.pop(), 0.0
            self.room = self.room + self.rate[self.front] if self.ahead else 1.0

    def _stop_flow(self, job: int) -> None:
        self.flows[job] = False
        if job < self.front:
            del self.ahead[bisect_left(self.ahead, job)]
            self.room = self.room + self.rate[job] if self.ahead else 1.0

    def _park(self, job: int, level: float) -> None:
        self.parked[job] = (self.now, level)
        heappush(self.behind, job)

    def _advance(self) -> None:
        """Make the next job the front, because nothing of the present front waits."""
        if self.flows[self.front]:
            self.ahead.append(self.front)
            self.room -= self.rate[self.front]
        if not self.behind:
            self.front = self.none
            return
        self.front = heappop(self.behind)
        since, level = self.parked[self.front]
        waited = self.now - since
        flowed = max(min(self.now, self.end[self.front]) - since, 0.0)
        rate = self.rate[self.front]
        self.waited += (level * waited + rate * flowed * (waited - flowed / 2)) / self.work[self.front]
        self.level = level + rate * flowed
