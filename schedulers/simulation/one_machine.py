"""One machine that does at most 1 work per second: what it can do for jobs at the very best.

`bounds` turns a cluster into such machines; here is what can be proven about one of them.
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

ROUNDING = 1e-9  # this part of each bound is given away: float noise must not lift one above the optimum


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """It does 1 work per second at most, and whatever the cluster can do to these jobs, it can do."""

    name: str
    jobs: list[Job]
    release: Floats
    work: Floats
    fastest: Floats  # never less than `work`, as even alone it takes the machine that long

    def makespan(self, first: float) -> tuple[float, str]:
        """At time t a job is done to (t - release) / fastest at most. That leaves some work of all jobs, so
        the end is at t + left(t) or later, for any t at which some job cannot have ended yet. In between
        the times at which a job is released or could first end this is linear: try those."""
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
        why = f"job {self.jobs[longest].id} comes at second {release[longest]:,.0f} and runs for "
        return float(ends[longest]), why + f"{self.fastest[longest]:,.0f} s"

    def turnaround(self) -> tuple[float, str]:
        """Of all jobs together."""
        alone = float(self.fastest.sum())
        busy = self.work > 0
        release = self.release[busy] - self.release.min()
        work, fastest = self.work[busy], self.fastest[busy]
        waiting = _Fluid(release, work, fastest).waiting() * (1 - ROUNDING)
        in_turn = alone - float(fastest.sum()) + _shortest_remaining_first(release, work) * (1 - ROUNDING)
        if in_turn > alone + waiting:
            return in_turn, f"one after the other on {self.name}, the one with the least work left first"
        if waiting > alone * ROUNDING:
            return alone + waiting, f"each job's fastest time, and waiting for {self.name}"
        return alone, "each job's fastest time"


def undominated(machines: list[Machine]) -> list[Machine]:
    """Without those for which every job is no more work than for another one: they bound nothing better."""
    kept: list[Machine] = []
    for machine in sorted(machines, key=lambda machine: -machine.work.sum()):
        if not any(np.all(machine.work <= other.work) for other in kept):
            kept.append(machine)
    return kept


def _shortest_remaining_first(release: Floats, work: Floats) -> float:
    """The least sum of turnarounds on one machine: there, no order is better than the job with the least
    work left first (Schrage 1968)."""
    order = np.argsort(release)
    left: list[float] = []  # of the jobs that are there, as a heap
    now = ended = 0.0
    for arrives, job in zip([*release[order].tolist(), inf], [*work[order].tolist(), inf], strict=True):
        while left and now + left[0] <= arrives:
            now += heappop(left)
            ended += now
        if left:
            heapreplace(left, left[0] - (arrives - now))
        now = arrives
        heappush(left, job)
    return ended - float(release.sum())


class _Fluid:
    """The least that jobs wait on one machine, on top of their own fastest times, summed over all jobs.

    A job makes progress at a rate of 1/fastest at most. So no part of it is done before it would be done
    at just this rate from its release on: think of its work as fluid that flows in like that. And if M is
    the mean time at which its work is done, which is never denser than this, it ends at M + fastest/2 or
    later. Both together:

        turnaround >= fastest + mean time that the drops of its fluid wait

    A drop weighs its part of the job, 1/work. The machine may serve any drop that is there, so the weighted
    wait is least if the heaviest always goes first (else exchange two drops): the job of least work, whose
    number here is its rank. And the wait of all drops is what waits, added up over time.
    """

    def __init__(self, release: Floats, work: Floats, fastest: Floats) -> None:
        rank = np.argsort(work, kind="stable")
        self.events = np.concatenate([release[rank], release[rank] + fastest[rank]])
        self.end: list[float] = self.events[len(work) :].tolist()
        self.rate: list[float] = (work[rank] / fastest[rank]).tolist()
        self.work: list[float] = work[rank].tolist()
        self.flows = [False] * len(work)
        self.parked = [(0.0, 0.0)] * len(work)  # since when it is behind, and what waited then
        self.none = len(work)
        self.ahead: list[int] = []  # are served as they flow in; sorted
        self.front = self.none  # gets what those ahead leave of the machine
        self.behind: list[int] = []  # get nothing; a heap
        self.room = 1.0  # what those ahead leave
        self.level = 0.0  # what waits of the front
        self.now = self.waited = 0.0

    def waiting(self) -> float:
        order = np.argsort(self.events, kind="stable")  # stable: no job ends before its release
        for event, time in zip(order.tolist(), self.events[order].tolist(), strict=True):
            self._serve(time)
            if event < self.none:
                self._flow_in(event)
            else:
                self._dry_up(event - self.none)
        self._serve(inf)
        return self.waited

    def _serve(self, until: float) -> None:
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

    def _flow_in(self, job: int) -> None:
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

    def _dry_up(self, job: int) -> None:
        self.flows[job] = False
        if job < self.front:
            del self.ahead[bisect_left(self.ahead, job)]
            self.room = self.room + self.rate[job] if self.ahead else 1.0

    def _park(self, job: int, level: float) -> None:
        self.parked[job] = (self.now, level)
        heappush(self.behind, job)

    def _advance(self) -> None:
        """Nothing of the front waits any more: the next one comes to the front."""
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
